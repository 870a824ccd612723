#pragma once
// Reading GGUF files, versions 2 and 3 (ggml/docs/gguf.md of llama.cpp): a header, typed metadata,
// the descriptions of tensors, and their aligned bytes.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

/// The element types of ggml that files here may use, by their numbers.
enum class GgmlType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
};
/// "Q4_K"; also of the types that are not read: "IQ2_XS", "type 99".
[[nodiscard]] std::string ggml_type_name(std::uint32_t type);

struct GgufTensor {
  GgmlType type = GgmlType::kF32;
  std::vector<std::int64_t> shape;  ///< row major: the reverse of the file's
  std::span<const std::byte> bytes;
  std::size_t file = 0;  ///< which of a model's files holds it
};

/// What a file holds. A view; the bytes must stay.
struct GgufContents {
  std::shared_ptr<const nlohmann::json> metadata;  ///< one object, by the file's own keys
  std::map<std::string, GgufTensor, std::less<>> tensors;
};

/// What of the metadata is kept. The vocabulary (lists under "tokenizer.ggml.") is nearly all of
/// it.
enum class GgufKeys : std::uint8_t { kAll, kNoVocabulary };

/// `file_name` is for errors only. Checked, as a file may be damaged or hostile: that every length
/// lies in the file, every type, that each tensor's bytes lie in the data, and that keys, tensors,
/// texts and the entries of arrays are not more than any model has.
/// Errors: kCorrupt, kUnsupported (version, type of a tensor), kTooLarge (what, its count and the
/// limit), naming file and key or tensor.
Result<GgufContents> parse_gguf(std::span<const std::byte> bytes, std::string_view file_name,
                                GgufKeys keys = GgufKeys::kAll);

}  // namespace troupe
