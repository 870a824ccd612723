// ECExampleConnector: outputs as files of a folder, as vLLM's connector of that name.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "runtime/base/file.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/json.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/ec_transfer/connectors.hpp"
#include "runtime/models/half_floats.hpp"
#include "runtime/models/safetensors.hpp"

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

Error system_error(const std::string& what, const std::filesystem::path& path) {
  return {ErrorCode::kIo, "cannot " + what + " " + path.string() + ": " + std::strerror(errno)};
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
    std::uint64_t header_size = 0;
    std::memcpy(&header_size, bytes.data(), kLengthSize);
    const nlohmann::json header =
        nlohmann::json::parse(std::string_view(*file).substr(kLengthSize, header_size), nullptr,
                              /*allow_exceptions=*/false);
    // What other programs write has none of these.
    const nlohmann::json metadata = header.value("__metadata__", nlohmann::json::object());
    if (metadata.is_object() && metadata.contains("encoder") && metadata["encoder"] != encoder_key_)
      return corrupt("encoder is " + metadata["encoder"].dump() + ", expected \"" + encoder_key_ +
                     "\"");
    if (metadata.is_object() && metadata.contains("xxh3_128") &&
        metadata["xxh3_128"] != digest_of(values))
      return corrupt(std::string("xxh3_128 of ") + kTensorName + " is " + digest_of(values) +
                     ", expected " + metadata["xxh3_128"].dump());
    return StoredOutput{file, values};
  }

  Result<void> save(const std::string& identifier, const OutputShape& shape,
                    std::span<const float> values) override {
    if (!is_folder_name(identifier))
      return invalid_argument("the identifier cannot be the name of a folder");
    nlohmann::json header = {
        {"__metadata__",
         {{"format", "pt"}, {"encoder", encoder_key_}, {"xxh3_128", digest_of(values)}}},
        {kTensorName,
         {{"dtype", "F32"},
          {"shape", {shape.num_rows, shape.hidden_size}},
          {"data_offsets", {0, shape.num_bytes()}}}}};
    std::string text = header.dump();
    text.resize((text.size() + kLengthSize - 1) / kLengthSize * kLengthSize, ' ');
    const std::uint64_t length = text.size();  // little endian, as every machine we build for

    const std::filesystem::path path = path_of(identifier);
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error)
      return Error{ErrorCode::kIo,
                   "cannot make " + path.parent_path().string() + ": " + error.message()};
    std::string unfinished = path.string() + ".XXXXXX";
    const FileDescriptor file(::mkostemp(unfinished.data(), O_CLOEXEC));
    if (!file.valid()) return system_error("write", unfinished);
    const auto written = [&]() -> Result<void> {
      // What may be read of it, its folder says.
      if (::fchmod(file.get(), S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH) != 0 ||
          !write_all(file.get(), std::as_bytes(std::span(&length, 1)), 0) ||
          !write_all(file.get(), std::as_bytes(std::span(text)), kLengthSize) ||
          !write_all(file.get(), std::as_bytes(values), kLengthSize + text.size()))
        return system_error("write", unfinished);
      if (::rename(unfinished.c_str(), path.c_str()) != 0)
        return system_error("rename", unfinished);
      return {};
    }();
    if (!written.ok()) ::unlink(unfinished.c_str());
    return written;
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
