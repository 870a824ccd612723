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
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ6_K = 14,
  kBF16 = 30,
};
/// "Q4_K"; also of the types that are not read: "Q5_0", "type 99".
[[nodiscard]] std::string ggml_type_name(std::uint32_t type);

struct GgufTensor {
  GgmlType type = GgmlType::kF32;
  std::vector<std::int64_t> shape;  ///< row major: the reverse of the file's
  std::span<const std::byte> bytes;
};

/// What a file holds. A view; the bytes must stay.
struct GgufContents {
  std::shared_ptr<const nlohmann::json> metadata;  ///< one object, by the file's own keys
  std::map<std::string, GgufTensor, std::less<>> tensors;
};

/// `file_name` is for errors only. Checked, as a file may be damaged or hostile: that every length
/// lies in the file, every type, and that each tensor's bytes lie in the data.
/// Errors: kCorrupt, kUnsupported (version, type of a tensor), naming file and key or tensor.
Result<GgufContents> parse_gguf(std::span<const std::byte> bytes, std::string_view file_name);

}  // namespace troupe
