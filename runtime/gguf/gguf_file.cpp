#include "runtime/gguf/gguf_file.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF", little endian
constexpr std::uint32_t kMaxDimensions = 4;   // the format's own limit
constexpr std::uint64_t kAlignmentStep = 8;   // required by the format; also aligns the elements
constexpr std::uint64_t kMaxAlignment = 1 << 16;

// Limits of what a file can make us allocate. The largest vocabularies have a quarter of a million
// tokens, each with score and type, and twice as many merges; the largest models have some ten
// thousand tensors.
constexpr std::uint64_t kMaxKeys = 1 << 16;
constexpr std::uint64_t kMaxTensors = 1 << 18;
constexpr std::uint64_t kMaxArrayEntries = 1 << 23;  // of all arrays together
constexpr std::uint64_t kMaxTextBytes = 1 << 24;

struct TypeInfo {
  std::uint32_t type;
  std::string_view name;
  std::uint64_t block_elements;  ///< 0: not supported
  std::uint64_t block_bytes;
};
constexpr std::array kTypes = {
    TypeInfo{0, "F32", 1, 4}, TypeInfo{1, "F16", 1, 2}, TypeInfo{30, "BF16", 1, 2},
    TypeInfo{2, "Q4_0", 32, 18}, TypeInfo{3, "Q4_1", 32, 20}, TypeInfo{6, "Q5_0", 32, 22},
    TypeInfo{7, "Q5_1", 32, 24}, TypeInfo{8, "Q8_0", 32, 34}, TypeInfo{10, "Q2_K", 256, 84},
    TypeInfo{11, "Q3_K", 256, 110}, TypeInfo{12, "Q4_K", 256, 144}, TypeInfo{13, "Q5_K", 256, 176},
    TypeInfo{14, "Q6_K", 256, 210}, TypeInfo{20, "IQ4_NL", 32, 18},
    TypeInfo{23, "IQ4_XS", 256, 136}, TypeInfo{39, "MXFP4", 32, 17},
    // Known by name only.
    TypeInfo{9, "Q8_1", 0, 0}, TypeInfo{15, "Q8_K", 0, 0}, TypeInfo{16, "IQ2_XXS", 0, 0},
    TypeInfo{17, "IQ2_XS", 0, 0}, TypeInfo{18, "IQ3_XXS", 0, 0}, TypeInfo{19, "IQ1_S", 0, 0},
    TypeInfo{21, "IQ3_S", 0, 0}, TypeInfo{22, "IQ2_S", 0, 0}, TypeInfo{24, "I8", 0, 0},
    TypeInfo{25, "I16", 0, 0}, TypeInfo{26, "I32", 0, 0}, TypeInfo{27, "I64", 0, 0},
    TypeInfo{28, "F64", 0, 0}, TypeInfo{29, "IQ1_M", 0, 0}, TypeInfo{31, "Q4_0_4_4", 0, 0},
    TypeInfo{32, "Q4_0_4_8", 0, 0}, TypeInfo{33, "Q4_0_8_8", 0, 0}, TypeInfo{34, "TQ1_0", 0, 0},
    TypeInfo{35, "TQ2_0", 0, 0}, TypeInfo{40, "NVFP4", 0, 0}};

const TypeInfo* find_type(std::uint32_t type) {
  const auto* found = std::ranges::find(kTypes, type, &TypeInfo::type);
  return found == kTypes.end() ? nullptr : found;
}

/// Reads the file from front to back. The first error is kept; later reads return zeros.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  template <class T>
  T number() {
    T value{};
    if (!has(sizeof(T))) return value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  std::string text() {
    const auto size = number<std::uint64_t>();
    if (!has(size)) return {};
    if (size > kMaxTextBytes) {
      fail(ErrorCode::kTooLarge, "a string of " + std::to_string(size) + " bytes, at most " +
                                     std::to_string(kMaxTextBytes) + " are supported");
      return {};
    }
    std::string value(reinterpret_cast<const char*>(bytes_.data() + position_), size);
    position_ += size;
    return value;
  }
  /// A value of that type; arrays do not nest.
  json value(std::uint32_t type, bool in_array = false) {
    switch (type) {
      case 0:
        return number<std::uint8_t>();
      case 1:
        return number<std::int8_t>();
      case 2:
        return number<std::uint16_t>();
      case 3:
        return number<std::int16_t>();
      case 4:
        return number<std::uint32_t>();
      case 5:
        return number<std::int32_t>();
      case 6:
        return number<float>();
      case 7:
        return number<std::uint8_t>() != 0;
      case 8:
        return text();
      case 9:
        if (!in_array) return array();
        break;
      case 10:
        return number<std::uint64_t>();
      case 11:
        return number<std::int64_t>();
      case 12:
        return number<double>();
      default:
        break;
    }
    fail(ErrorCode::kUnsupported, "metadata of type " + std::to_string(type) +
                                      (in_array ? " in an array" : "") + " is not supported");
    return nullptr;
  }

  /// How many more entries of at least `entry_bytes` the file can hold.
  [[nodiscard]] bool can_hold(std::uint64_t count, std::uint64_t entry_bytes) const {
    return count <= (bytes_.size() - position_) / entry_bytes;
  }
  void fail(ErrorCode code, const std::string& reason) {
    if (!error_) error_ = Error{code, std::string(file_) + ": " + where_ + reason};
  }
  /// The prefix of error messages: `metadata "general.name": `.
  void set_where(std::string where) { where_ = std::move(where); }
  /// Whether the next arrays are kept or skipped.
  void set_keeps_arrays(bool keeps_arrays) { keeps_arrays_ = keeps_arrays; }
  [[nodiscard]] std::size_t position() const { return position_; }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  bool has(std::uint64_t size) {
    if (!error_ && size > bytes_.size() - position_)
      fail(ErrorCode::kCorrupt, std::to_string(size) + " bytes are missing at byte " +
                                    std::to_string(position_) + " of " +
                                    std::to_string(bytes_.size()) + " (is the file truncated?)");
    return !error_;
  }
  json array() {
    const auto type = number<std::uint32_t>();
    const auto count = number<std::uint64_t>();
    json values = json::array();
    if (error_) return values;
    if (!can_hold(count, 1)) {
      fail(ErrorCode::kCorrupt,
           "an array of " + std::to_string(count) + " entries is longer than the rest of the file");
      return values;
    }
    if (count > kMaxArrayEntries - num_array_entries_) {
      fail(ErrorCode::kTooLarge,
           "an array of " + std::to_string(count) + " entries, at most " +
               std::to_string(kMaxArrayEntries) + " are supported in all arrays of a file" +
               (num_array_entries_ == 0
                    ? ""
                    : ", " + std::to_string(num_array_entries_) + " are before it"));
      return values;
    }
    num_array_entries_ += count;
    for (std::uint64_t i = 0; i < count && !error_; ++i) {
      json entry = value(type, true);
      if (keeps_arrays_) values.push_back(std::move(entry));
    }
    return values;
  }

  std::span<const std::byte> bytes_;
  std::string_view file_;
  std::string where_;
  bool keeps_arrays_ = true;
  std::uint64_t num_array_entries_ = 0;  ///< so far
  std::size_t position_ = 0;
  std::optional<Error> error_;
};

struct TensorEntry {
  std::string name;
  GgufTensor tensor;
  std::uint64_t offset = 0;
  std::uint64_t num_bytes = 0;
};

TensorEntry read_entry(Reader& reader) {
  TensorEntry entry;
  reader.set_where("");
  entry.name = reader.text();
  reader.set_where("tensor \"" + entry.name.substr(0, 200) + "\": ");
  const auto num_dimensions = reader.number<std::uint32_t>();
  if (num_dimensions > kMaxDimensions) {
    reader.fail(ErrorCode::kCorrupt, std::to_string(num_dimensions) + " dimensions, at most " +
                                         std::to_string(kMaxDimensions) + " are allowed");
    return entry;
  }
  for (std::uint32_t i = 0; i < num_dimensions; ++i) {
    const auto size = reader.number<std::uint64_t>();
    if (size > INT64_MAX) reader.fail(ErrorCode::kCorrupt, "its shape overflows");
    entry.tensor.shape.insert(entry.tensor.shape.begin(), static_cast<std::int64_t>(size));
  }
  const auto type = reader.number<std::uint32_t>();
  entry.offset = reader.number<std::uint64_t>();
  if (reader.error()) return entry;
  const TypeInfo* known = find_type(type);
  if (known == nullptr || known->block_elements == 0) {
    std::string supported;
    for (const TypeInfo& each : kTypes)
      if (each.block_elements != 0)
        supported += (supported.empty() ? "" : ", ") + std::string(each.name);
    reader.fail(ErrorCode::kUnsupported,
                "its type is " + ggml_type_name(type) + ", supported are " + supported);
    return entry;
  }
  entry.tensor.type = static_cast<GgmlType>(type);
  const std::uint64_t row =
      entry.tensor.shape.empty() ? 1 : static_cast<std::uint64_t>(entry.tensor.shape.back());
  if (row % known->block_elements != 0) {
    reader.fail(ErrorCode::kCorrupt, "rows of " + std::to_string(row) + " elements are not whole " +
                                         std::string(known->name) + " blocks of " +
                                         std::to_string(known->block_elements));
    return entry;
  }
  entry.num_bytes = row / known->block_elements;
  bool overflows = __builtin_mul_overflow(entry.num_bytes, known->block_bytes, &entry.num_bytes);
  for (std::size_t i = 0; i + 1 < entry.tensor.shape.size(); ++i)
    overflows |= __builtin_mul_overflow(
        entry.num_bytes, static_cast<std::uint64_t>(entry.tensor.shape[i]), &entry.num_bytes);
  if (overflows) reader.fail(ErrorCode::kCorrupt, "its shape overflows");
  return entry;
}

}  // namespace

std::string ggml_type_name(std::uint32_t type) {
  const TypeInfo* known = find_type(type);
  return known != nullptr ? std::string(known->name) : "type " + std::to_string(type);
}

Result<GgufContents> parse_gguf(std::span<const std::byte> bytes, std::string_view file_name,
                                GgufKeys keys) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (const auto pointer = lfs_pointer_error(text, file_name)) return *pointer;
  Reader reader(bytes, file_name);
  const auto corrupt = [&](const std::string& reason) {
    return Error{ErrorCode::kCorrupt, std::string(file_name) + ": " + reason};
  };
  const auto magic = reader.number<std::uint32_t>();
  const auto version = reader.number<std::uint32_t>();
  const auto num_tensors = reader.number<std::uint64_t>();
  const auto num_keys = reader.number<std::uint64_t>();
  if (reader.error()) return *reader.error();
  if (magic != kMagic)
    return corrupt("not a GGUF file (for other formats give the model's folder)");
  if (version != 2 && version != 3)
    return Error{ErrorCode::kUnsupported, std::string(file_name) + ": GGUF version " +
                                              std::to_string(version) +
                                              " is not supported, only 2 and 3"};
  constexpr std::uint64_t kMinKeyBytes = 8 + 4 + 1;
  constexpr std::uint64_t kMinEntryBytes = 8 + 4 + 4 + 8;
  if (!reader.can_hold(num_keys, kMinKeyBytes) || !reader.can_hold(num_tensors, kMinEntryBytes))
    return corrupt("the header declares " + std::to_string(num_keys) + " metadata keys and " +
                   std::to_string(num_tensors) + " tensors, more than " +
                   std::to_string(bytes.size()) + " bytes can hold");
  if (num_keys > kMaxKeys || num_tensors > kMaxTensors)
    return Error{ErrorCode::kTooLarge, std::string(file_name) + ": the header declares " +
                                           std::to_string(num_keys) + " metadata keys and " +
                                           std::to_string(num_tensors) + " tensors, at most " +
                                           std::to_string(kMaxKeys) + " and " +
                                           std::to_string(kMaxTensors) + " are supported"};

  json metadata = json::object();
  for (std::uint64_t i = 0; i < num_keys; ++i) {
    reader.set_where("");
    const std::string key = reader.text();
    reader.set_where("metadata \"" + key.substr(0, 200) + "\": ");
    const auto type = reader.number<std::uint32_t>();
    reader.set_keeps_arrays(keys == GgufKeys::kAll || !key.starts_with("tokenizer.ggml."));
    json value = reader.value(type);
    if (reader.error()) return *reader.error();
    if (!metadata.emplace(key, std::move(value)).second)
      return corrupt("metadata \"" + key + "\" is defined twice");
  }
  std::vector<TensorEntry> entries;
  for (std::uint64_t i = 0; i < num_tensors; ++i) {
    entries.push_back(read_entry(reader));
    if (reader.error()) return *reader.error();
  }

  std::uint64_t alignment = 32;
  if (const auto given = metadata.find("general.alignment"); given != metadata.end()) {
    alignment = given->is_number_unsigned() ? given->get<std::uint64_t>() : 0;
    if (alignment == 0 || alignment > kMaxAlignment || alignment % kAlignmentStep != 0)
      return corrupt("general.alignment is " +
                     given->dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 200) +
                     ", not a multiple of " + std::to_string(kAlignmentStep) + " up to " +
                     std::to_string(kMaxAlignment));
  }
  const std::uint64_t data_begin = (reader.position() + alignment - 1) / alignment * alignment;
  const std::uint64_t data_bytes = bytes.size() > data_begin ? bytes.size() - data_begin : 0;
  GgufContents contents;
  for (TensorEntry& entry : entries) {
    if (entry.offset % alignment != 0)
      return corrupt("tensor \"" + entry.name + "\": offset " + std::to_string(entry.offset) +
                     " is not a multiple of " + std::to_string(alignment));
    if (entry.offset > data_bytes || entry.num_bytes > data_bytes - entry.offset)
      return corrupt("tensor \"" + entry.name + "\": " + std::to_string(entry.num_bytes) +
                     " bytes at " + std::to_string(entry.offset) + " are outside of the file's " +
                     std::to_string(data_bytes) + " bytes of data (is the file truncated?)");
    if (entry.num_bytes != 0)
      entry.tensor.bytes = bytes.subspan(data_begin + entry.offset, entry.num_bytes);
    if (!contents.tensors.emplace(entry.name, std::move(entry.tensor)).second)
      return corrupt("tensor \"" + entry.name + "\" is defined twice");
  }
  contents.metadata = std::make_shared<const json>(std::move(metadata));
  return contents;
}

}  // namespace troupe
