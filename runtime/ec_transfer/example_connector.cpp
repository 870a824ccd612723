// ECExampleConnector: outputs as files of a folder, as vLLM's connector of that name.

#include <algorithm>
#include <array>
#include <filesystem>

#include "runtime/base/file.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/ec_transfer/connectors.hpp"
#include "runtime/models/half_floats.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/models/tensor_file.hpp"

namespace troupe {
namespace {

constexpr const char* kFileName = "encoder_cache.safetensors";
constexpr const char* kTensorName = "ec_cache";
constexpr std::size_t kLengthSize = sizeof(std::uint64_t);
/// More than any header of a file with one tensor.
constexpr std::size_t kMaxHeaderSize = std::size_t{1} << 20;
constexpr std::size_t kMaxNameSize = 255;

/// Clients may choose identifiers.
bool is_folder_name(const std::string& identifier) {
  return !identifier.empty() && identifier.size() <= kMaxNameSize && identifier != "." &&
         identifier != ".." && std::none_of(identifier.begin(), identifier.end(), [](char c) {
           return c == '/' || c == '\0';
         });
}

std::string digest_of(std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return to_hex(xxh3_128({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}));
}

/// vLLM writes the type that its model computes in.
StoredOutput widened(const TensorView& view) {
  const auto values = std::make_shared<std::vector<float>>();
  for (const std::uint16_t bits : view.elements<std::uint16_t>())
    values->push_back(view.type == TensorType::kBF16 ? widen_bf16(bits) : widen_f16(bits));
  return {values, *values};
}

/// Files of which nobody but their writers has anything to say: one that another program wrote, or
/// that was cut, is told by its shape and, where it has one, by its digest.
class SafetensorsStore final : public OutputStore {
 public:
  SafetensorsStore(std::filesystem::path folder, std::string encoder_key)
      : folder_(std::move(folder)), encoder_key_(std::move(encoder_key)) {}

  bool has(const std::string& identifier) override {
    if (!is_folder_name(identifier)) return false;
    std::error_code error;
    return std::filesystem::is_regular_file(path_of(identifier), error);
  }

  Result<StoredOutput> load(const std::string& identifier, const OutputShape& shape) override {
    if (!is_folder_name(identifier))
      return Error{ErrorCode::kNotFound, "the identifier cannot be the name of a folder"};
    const std::string path = path_of(identifier).string();
    ASSIGN_OR_RETURN(std::string content,
                     read_file(path, kLengthSize + kMaxHeaderSize + shape.num_bytes()));
    const auto file = std::make_shared<const std::string>(std::move(content));
    const std::span<const std::byte> bytes = std::as_bytes(std::span(*file));
    ASSIGN_OR_RETURN(const TensorMap tensors, parse_safetensors(bytes, path));
    const auto corrupt = [&](const std::string& what) {
      return Error{ErrorCode::kCorrupt, path + ": " + what};
    };
    const auto tensor = tensors.find(kTensorName);
    if (tensor == tensors.end()) return corrupt(std::string("there is no tensor ") + kTensorName);
    const TensorView& view = tensor->second;
    if (view.type != TensorType::kF32 && view.type != TensorType::kBF16 &&
        view.type != TensorType::kF16)
      return corrupt(std::string(kTensorName) + " has the type " +
                     std::string(to_string(view.type)) + ", expected F32, BF16 or F16");
    const std::array expected{shape.num_rows, shape.hidden_size};
    if (!std::ranges::equal(view.shape, expected))
      return corrupt(std::string(kTensorName) + " has the shape " + shape_text(view.shape) +
                     ", expected " + shape_text(expected));
    if (view.type != TensorType::kF32) return widened(view);  // another program's
    const auto values = view.elements<float>();
    // What other programs write has none of these.
    auto metadata = tensor_file_metadata(bytes);
    if (metadata.contains("encoder") && metadata["encoder"] != encoder_key_)
      return corrupt("encoder is \"" + metadata["encoder"] + "\", expected \"" + encoder_key_ +
                     "\"");
    if (metadata.contains("xxh3_128") && metadata["xxh3_128"] != digest_of(values))
      return corrupt(std::string("xxh3_128 of ") + kTensorName + " is " + digest_of(values) +
                     ", expected \"" + metadata["xxh3_128"] + "\"");
    return StoredOutput{file, values};
  }

  Result<void> save(const std::string& identifier, const OutputShape& shape,
                    std::span<const float> values) override {
    if (!is_folder_name(identifier))
      return invalid_argument("the identifier cannot be the name of a folder");
    return write_tensor_file(
        path_of(identifier), kTensorName,
        {.type = TensorType::kF32,
         .shape = {shape.num_rows, shape.hidden_size},
         .bytes = std::as_bytes(values)},
        {{"format", "pt"}, {"encoder", encoder_key_}, {"xxh3_128", digest_of(values)}});
  }

 private:
  [[nodiscard]] std::filesystem::path path_of(const std::string& identifier) const {
    return folder_ / identifier / kFileName;
  }

  std::filesystem::path folder_;
  std::string encoder_key_;
};

}  // namespace

Result<std::shared_ptr<OutputStore>> open_file_store(const ECConnectorContext& context) {
  ConnectorExtraConfig extra(ConnectorKind::kEC, context.config);
  ASSIGN_OR_RETURN(const std::string folder, extra.take_text("shared_storage_path", "/tmp"));
  RETURN_IF_ERROR(extra.take_seconds(kLookupTimeoutKey, 0));
  RETURN_IF_ERROR(extra.check_empty());
  return std::shared_ptr<OutputStore>(
      std::make_shared<SafetensorsStore>(folder, context.encoder_key));
}

}  // namespace troupe
