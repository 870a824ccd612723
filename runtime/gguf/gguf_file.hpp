#pragma once
// Parser for GGUF files, versions 2 and 3 (ggml/docs/gguf.md of llama.cpp): a header, typed
// metadata, tensor descriptors, and aligned tensor data.

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

/// The supported ggml element types, by their numbers.
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
  kMXFP4 = 39,
  kBF16 = 30,
};
/// "Q4_K"; also names unsupported types: "IQ2_XS", "type 99".
[[nodiscard]] std::string ggml_type_name(std::uint32_t type);

struct GgufTensor {
  GgmlType type = GgmlType::kF32;
  std::vector<std::int64_t> shape;  ///< row-major: reverse of the file's
  std::span<const std::byte> bytes;
  std::size_t file = 0;  ///< index of the model's file that holds it
};

/// The contents of a file: a view, valid as long as the bytes.
struct GgufContents {
  std::shared_ptr<const nlohmann::json> metadata;  ///< one object, with the file's keys
  std::map<std::string, GgufTensor, std::less<>> tensors;
};

/// The metadata to keep. The vocabulary (lists under "tokenizer.ggml.") is nearly all of it.
enum class GgufKeys : std::uint8_t { kAll, kNoVocabulary };

/// `file_name` is for errors only. Validates untrusted files: lengths, types, tensor data within
/// the file, and limits on keys, tensors, strings and array entries. Errors: kCorrupt, kUnsupported
/// (version, tensor type), kTooLarge (what, its count and the limit), naming file and key or
/// tensor.
Result<GgufContents> parse_gguf(std::span<const std::byte> bytes, std::string_view file_name,
                                GgufKeys keys = GgufKeys::kAll);

}  // namespace troupe
