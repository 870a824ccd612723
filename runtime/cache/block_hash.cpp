#include "runtime/cache/block_hash.hpp"

#include <algorithm>

#include "runtime/base/cbor.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/hash.hpp"

namespace troupe {
namespace {

/// vLLM's key, and more where that would be the same for other weights.
std::string path_of(const LoraRequest& lora) {
  return lora.revision == 0 ? lora.path : lora.path + "@" + std::to_string(lora.revision);
}

using Bytes = std::vector<std::uint8_t>;

/// Produces CPython's pickle, protocol 5, of the hashed values: strings, ints, None, and tuples of
/// them. Equal strings are distinct objects, except for the tags of extra keys, which Python
/// interns: from the second time on a tag is a reference to the memo.
class PickleWriter {
 public:
  explicit PickleWriter(Bytes& out) : out_(out) {
    out_.insert(out_.end(), {0x80, 0x05, 0x95, 0, 0, 0, 0, 0, 0, 0, 0});
    body_ = out_.size();
  }
  /// Adds the stop opcode, and the length to the frame's header.
  void finish() {
    out_.push_back(0x2e);
    const std::uint64_t size = out_.size() - body_;
    CHECK(size < 65536, size);  // a longer pickle would have several frames
    for (std::size_t i = 0; i < 8; ++i)
      out_[body_ - 8 + i] = static_cast<std::uint8_t>(size >> (8 * i));
  }

  void integer(std::int64_t x) {
    if (x >= 0 && x <= 0xff) {
      out_.push_back(0x4b);
      little_endian(x, 1);
    } else if (x >= 0 && x <= 0xffff) {
      out_.push_back(0x4d);
      little_endian(x, 2);
    } else {
      out_.push_back(0x4a);
      little_endian(x, 4);
    }
  }
  void integers(std::span<const TokenId> xs) {
    for (const TokenId x : xs) integer(x);
  }
  void bytes(std::span<const std::uint8_t> x) {
    out_.insert(out_.end(), {0x43, static_cast<std::uint8_t>(x.size())});
    out_.insert(out_.end(), x.begin(), x.end());
    memoize();
  }
  void text(std::string_view x) {
    if (x.size() <= 0xff) {
      out_.push_back(0x8c);
      little_endian(static_cast<std::int64_t>(x.size()), 1);
    } else {
      out_.push_back(0x58);
      little_endian(static_cast<std::int64_t>(x.size()), 4);
    }
    out_.insert(out_.end(), x.begin(), x.end());
    memoize();
  }
  void tag(std::string_view x) {
    for (const auto& [known, index] : tags_) {
      if (known != x) continue;
      out_.push_back(index <= 0xff ? 0x68 : 0x6a);
      little_endian(index, index <= 0xff ? 1 : 4);
      return;
    }
    tags_.emplace_back(x, num_memoized_);
    text(x);
  }
  void nil() { out_.push_back(0x4e); }
  void begin_tuple(std::size_t size) {
    if (size > 3) out_.push_back(0x28);
  }
  void end_tuple(std::size_t size) {
    constexpr std::uint8_t kBySize[] = {0x29, 0x85, 0x86, 0x87};
    out_.push_back(size > 3 ? 0x74 : kBySize[size]);
    if (size > 0) memoize();
  }

 private:
  void little_endian(std::int64_t x, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) out_.push_back(static_cast<std::uint8_t>(x >> (8 * i)));
  }
  void memoize() {
    out_.push_back(0x94);
    ++num_memoized_;
  }
  Bytes& out_;
  std::size_t body_ = 0;
  std::int64_t num_memoized_ = 0;
  std::vector<std::pair<std::string_view, std::int64_t>> tags_;
};

/// The same interface for CBOR, where tuples are arrays and tags plain text.
class CborTupleWriter : public CborWriter {
 public:
  using CborWriter::CborWriter;
  void tag(std::string_view x) { text(x); }
  void begin_tuple(std::size_t size) { array(size); }
  void end_tuple(std::size_t) {}
  void finish() {}
};

/// Calls f(item) for the items that overlap tokens [begin, end).
template <class Function>
void for_each_overlap(const KVCacheRequest& request, std::int32_t begin, std::int32_t end,
                      Function&& f) {
  for (const MultiModalFeature& item : request.mm_features)
    if (item.offset < end && begin < item.offset + item.length) f(item);
}

/// (parent, tokens, extra keys or nil): the hashed value of the unit of tokens [begin, end).
template <class Writer>
void write_unit(Writer& out, const KVCacheRequest& request, std::int32_t begin, std::int32_t end,
                std::span<const std::uint8_t> parent) {
  out.begin_tuple(3);
  out.bytes(parent);
  const auto size = static_cast<std::size_t>(end - begin);
  out.begin_tuple(size);
  out.integers(std::span(request.token_ids.get()).subspan(static_cast<std::size_t>(begin), size));
  out.end_tuple(size);

  const bool salted = begin == 0 && !request.cache_salt.empty();
  std::size_t num_keys =
      (request.lora ? 1u : 0u) + (salted ? 1u : 0u) + (request.prompt_embeds ? 1u : 0u);
  for_each_overlap(request, begin, end, [&](const MultiModalFeature&) { ++num_keys; });
  if (num_keys == 0) {
    out.nil();
  } else {
    out.begin_tuple(num_keys);
    if (request.lora) {
      out.begin_tuple(3);
      out.tag("lora"), out.text(request.lora->name), out.text(path_of(*request.lora));
      out.end_tuple(3);
    }
    for_each_overlap(request, begin, end, [&](const MultiModalFeature& item) {
      out.begin_tuple(3);
      out.tag("mm"), out.text(item.identifier), out.integer(item.offset - begin);
      out.end_tuple(3);
    });
    if (salted) {
      out.begin_tuple(2);
      out.tag("cache_salt"), out.text(request.cache_salt);
      out.end_tuple(2);
    }
    if (request.prompt_embeds) {
      out.begin_tuple(2);
      out.tag("prompt_embeds"), out.bytes(embeds_digest(request, begin, end).bytes);
      out.end_tuple(2);
    }
    out.end_tuple(num_keys);
  }
  out.end_tuple(3);
  out.finish();
}

bool uses_pickle(BlockHashAlgorithm algorithm) {
  return algorithm == BlockHashAlgorithm::kSha256 || algorithm == BlockHashAlgorithm::kXxhash;
}
bool uses_sha256(BlockHashAlgorithm algorithm) {
  return algorithm == BlockHashAlgorithm::kSha256 || algorithm == BlockHashAlgorithm::kSha256Cbor;
}

}  // namespace

Result<BlockHashAlgorithm> parse_block_hash_algorithm(std::string_view name) {
  if (name == "sha256") return BlockHashAlgorithm::kSha256;
  if (name == "sha256_cbor") return BlockHashAlgorithm::kSha256Cbor;
  if (name == "xxhash") return BlockHashAlgorithm::kXxhash;
  if (name == "xxhash_cbor") return BlockHashAlgorithm::kXxhashCbor;
  return invalid_argument("prefix-caching-hash-algo is '" + std::string(name) +
                          "', must be one of sha256, sha256_cbor, xxhash, xxhash_cbor");
}

BlockHash embeds_digest(const KVCacheRequest& request, std::int32_t begin, std::int32_t end) {
  const std::vector<char>& rows = *request.prompt_embeds;
  const auto offset = [&](std::int32_t token) {
    return std::min(rows.size(), static_cast<std::size_t>(token) *
                                     static_cast<std::size_t>(request.prompt_embed_row_bytes));
  };
  const auto* data = reinterpret_cast<const std::uint8_t*>(rows.data());
  return {sha256({data + offset(begin), offset(end) - offset(begin)})};
}

BlockHasher::BlockHasher(BlockHashAlgorithm algorithm, std::int32_t unit, std::string_view seed)
    : algorithm_(algorithm), unit_(unit), hash_size_(uses_sha256(algorithm) ? 32 : 16) {
  CHECK(unit > 0, unit);
  Bytes bytes;
  if (uses_pickle(algorithm)) {
    PickleWriter writer(bytes);
    writer.text(seed);
    writer.finish();
  } else {
    CborWriter(bytes).text(seed);
  }
  none_hash_ = digest(bytes);
}

BlockHash BlockHasher::digest(std::span<const std::uint8_t> bytes) const {
  BlockHash hash;
  if (uses_sha256(algorithm_)) {
    hash.bytes = sha256(bytes);
  } else {
    const auto digest = xxh3_128(bytes);
    std::copy(digest.begin(), digest.end(), hash.bytes.begin());
  }
  return hash;
}

void BlockHasher::extend(const KVCacheRequest& request, std::vector<BlockHash>& hashes) const {
  const auto num_units = request.token_ids.size() / static_cast<std::size_t>(unit_);
  if (hashes.size() >= num_units) return;
  Bytes bytes;
  // Grow geometrically: exact growth would copy all hashes with each further block.
  if (num_units > hashes.capacity()) hashes.reserve(std::max(num_units, 2 * hashes.capacity()));
  while (hashes.size() < num_units) {
    const auto begin = static_cast<std::int32_t>(hashes.size()) * unit_;
    const BlockHash& parent = hashes.empty() ? none_hash_ : hashes.back();
    const std::span<const std::uint8_t> parent_bytes(parent.bytes.data(), hash_size_);
    bytes.clear();
    if (uses_pickle(algorithm_)) {
      PickleWriter writer(bytes);
      write_unit(writer, request, begin, begin + unit_, parent_bytes);
    } else {
      CborTupleWriter writer(bytes);
      write_unit(writer, request, begin, begin + unit_, parent_bytes);
    }
    hashes.push_back(digest(bytes));
  }
}

}  // namespace troupe
