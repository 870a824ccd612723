#include "runtime/models/tensor_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "runtime/base/file.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/json.hpp"

namespace troupe {
namespace {

constexpr std::size_t kLengthSize = sizeof(std::uint64_t);

Error tensor_file_error(const std::string& what, const std::string& path) {
  return {ErrorCode::kIo, "cannot " + what + " " + path + ": " + std::strerror(errno)};
}

}  // namespace

Result<void> write_tensor_file(const std::filesystem::path& path, const std::string& name,
                               const TensorView& tensor,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::json header = {{"__metadata__", metadata},
                           {name,
                            {{"dtype", to_string(tensor.type)},
                             {"shape", tensor.shape},
                             {"data_offsets", {0, tensor.bytes.size()}}}}};
  std::string text = header.dump();
  text.resize((text.size() + kLengthSize - 1) / kLengthSize * kLengthSize, ' ');
  const std::uint64_t length = text.size();  // little endian, as every machine we build for

  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error)
    return Error{ErrorCode::kIo,
                 "cannot make " + path.parent_path().string() + ": " + error.message()};
  std::string unfinished = path.string() + ".XXXXXX";
  const FileDescriptor file(::mkostemp(unfinished.data(), O_CLOEXEC));
  if (!file.valid()) return tensor_file_error("write", unfinished);
  const auto written = [&]() -> Result<void> {
    // What may be read of it, its folder says.
    if (::fchmod(file.get(), S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH) != 0 ||
        !write_all(file.get(), std::as_bytes(std::span(&length, 1)), 0) ||
        !write_all(file.get(), std::as_bytes(std::span(text)), kLengthSize) ||
        !write_all(file.get(), tensor.bytes, kLengthSize + text.size()))
      return tensor_file_error("write", unfinished);
    if (::rename(unfinished.c_str(), path.c_str()) != 0)
      return tensor_file_error("rename", unfinished);
    return {};
  }();
  if (!written.ok()) ::unlink(unfinished.c_str());
  return written;
}

std::map<std::string, std::string> tensor_file_metadata(std::span<const std::byte> file) {
  std::uint64_t length = 0;
  if (file.size() < kLengthSize) return {};
  std::memcpy(&length, file.data(), kLengthSize);
  if (length > file.size() - kLengthSize) return {};
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthSize, length);
  const nlohmann::json header = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::map<std::string, std::string> metadata;
  if (!header.is_object()) return metadata;
  const auto found = header.find("__metadata__");
  if (found == header.end() || !found->is_object()) return metadata;
  for (const auto& [key, value] : found->items())
    if (value.is_string()) metadata.emplace(key, value.get<std::string>());
  return metadata;
}

}  // namespace troupe
