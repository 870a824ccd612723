#include "runtime/kv_transfer/lmcache/cache_engine_key.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace troupe::lmcache {
namespace {

/// Of torch, and in keys.
constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kDtypes = {{
    {"float16", "half"},
    {"half", "half"},
    {"bfloat16", "bfloat16"},
    {"float32", "float"},
    {"float64", "double"},
    {"int8", "int8"},
    {"uint8", "uint8"},
    {"int16", "int16"},
    {"int32", "int32"},
    {"int64", "int64"},
    {"bool", "bool"},
    {"float8_e4m3fn", "fp8_e4m3fn"},
    {"float8_e4m3fnuz", "fp8_e4m3fnuz"},
    {"float8_e5m2", "fp8_e5m2"},
    {"float8_e5m2fnuz", "fp8_e5m2fnuz"},
}};

Error bad_field(std::string_view text, const char* field, std::string_view value) {
  return invalid_argument("key " + std::string(text) + ": " + field + " is '" + std::string(value) +
                          "'");
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

template <class T>
bool parse_number(std::string_view text, T& number, int base = 10) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return read.ec == std::errc() && read.ptr == text.data() + text.size();
}

}  // namespace

std::string to_hex(PythonInt hash) {
  std::array<char, 16> digits;
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), hash.magnitude, 16).ptr;
  return (hash.negative ? "-" : "") + std::string(digits.data(), end);
}

Result<std::string> key_dtype(std::string_view dtype) {
  constexpr std::string_view kTorch = "torch.";
  const std::string_view name = dtype.starts_with(kTorch) ? dtype.substr(kTorch.size()) : dtype;
  for (const auto& [torch, key] : kDtypes)
    if (torch == name) return std::string(key);
  return invalid_argument("the type " + std::string(dtype) + " has no name in LMCache's keys");
}

std::string CacheEngineKey::text() const {
  std::string text = model + '@' + std::to_string(world_size) + '@' + std::to_string(worker) + '@' +
                     to_hex(hash) + '@' + dtype;
  if (layer) text += '@' + std::to_string(*layer);
  for (const auto& [name, value] : tags) text.append(1, '@').append(name).append(1, '%') += value;
  return text;
}

const std::string* CacheEngineKey::tag(std::string_view name) const noexcept {
  const auto found = std::ranges::find(tags, name, &std::pair<std::string, std::string>::first);
  return found == tags.end() ? nullptr : &found->second;
}

std::string chunk_key(CacheEngineKey engine, const ChunkId& id, bool signed_hashes) {
  engine.hash =
      signed_hashes ? PythonInt::of(static_cast<std::int64_t>(id.hash)) : PythonInt{id.hash, false};
  return engine.text() + id.tags;
}

Result<CacheEngineKey> parse_cache_engine_key(std::string_view text) {
  constexpr std::size_t kNumFields = 5;
  std::vector<std::string_view> fields;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find('@', begin);
    fields.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) break;
    begin = end + 1;
  }
  if (fields.size() < kNumFields)
    return invalid_argument("key " + std::string(text) + " has " + std::to_string(fields.size()) +
                            " fields, it needs " + std::to_string(kNumFields));
  CacheEngineKey key;
  key.model = fields[0];
  if (!parse_number(fields[1], key.world_size) || key.world_size < 1)
    return bad_field(text, "the world size", fields[1]);
  if (!parse_number(fields[2], key.worker) || key.worker < 0)
    return bad_field(text, "the worker", fields[2]);
  std::string_view digits = fields[3];
  if (digits.starts_with('-')) {
    key.hash.negative = true;
    digits.remove_prefix(1);
  }
  if (!parse_number(digits, key.hash.magnitude, 16)) return bad_field(text, "the hash", fields[3]);
  key.dtype = fields[4];
  if (std::ranges::find(kDtypes, fields[4],
                        &std::pair<std::string_view, std::string_view>::second) == kDtypes.end())
    return bad_field(text, "the type", fields[4]);
  std::size_t next = kNumFields;
  if (next < fields.size() && all_digits(fields[next])) {
    std::int32_t layer = 0;
    if (!parse_number(fields[next], layer)) return bad_field(text, "the layer", fields[next]);
    key.layer = layer;
    ++next;
  }
  for (; next < fields.size(); ++next) {
    const std::size_t middle = fields[next].find('%');
    if (middle == std::string_view::npos) return bad_field(text, "a tag", fields[next]);
    key.tags.emplace_back(fields[next].substr(0, middle), fields[next].substr(middle + 1));
  }
  return key;
}

}  // namespace troupe::lmcache
