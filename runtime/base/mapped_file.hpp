#pragma once
// Files mapped to be read.

#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

#include "runtime/base/result.hpp"

namespace troupe {

/// Owns the read-only mapping of a whole file.
class MappedFile {
 public:
  MappedFile() = default;
  /// Errors: kNotFound, kIo; both name the file.
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  /// Reads the pages of `part`, a part of the file, so that whoever comes later does not wait.
  /// Errors: kIo, without the file's name.
  [[nodiscard]] Result<void> read_in(std::span<const std::byte> part) const;
  /// Gives up the memory of the whole pages in `part`, if it is a part of the file; whoever reads
  /// them again gets them from the system's cache or the disk.
  void drop_pages(std::span<const std::byte> part) const noexcept;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace troupe
