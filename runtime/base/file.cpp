#include "runtime/base/file.hpp"

#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>

namespace troupe {

Result<std::string> read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return Error{ErrorCode::kNotFound, "no such file: '" + path.string() + "'"};
  }
  std::ifstream stream(path, std::ios::binary);
  std::string bytes;
  constexpr std::size_t kPiece = 1 << 16;
  while (stream && bytes.size() <= max_bytes) {
    const std::size_t size = bytes.size();
    bytes.resize(size + kPiece);
    stream.read(bytes.data() + size, kPiece);
    bytes.resize(size + static_cast<std::size_t>(stream.gcount()));
  }
  // Opening a folder succeeds; reading it fails.
  if (stream.bad() || (!stream && !stream.eof())) {
    return Error{ErrorCode::kIo, "cannot read '" + path.string() + "'"};
  }
  if (bytes.size() > max_bytes) {
    return Error{ErrorCode::kTooLarge,
                 "'" + path.string() + "' has more than " + std::to_string(max_bytes) + " bytes"};
  }
  return bytes;
}

std::optional<Error> lfs_pointer_error(std::string_view bytes, std::string_view file_name) {
  // Every version of the format begins like this; no supported file format does.
  if (!bytes.starts_with("version https://git-lfs.github.com/spec/")) return std::nullopt;
  return Error{ErrorCode::kCorrupt, std::string(file_name) +
                                        " is a git-lfs pointer, not the file that it stands for: "
                                        "run \"git lfs pull\" in its folder, or download the file"};
}

bool write_all(int file, std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return true;
}

}  // namespace troupe
