#pragma once
// Files mapped to be read.

#include <atomic>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

#include "runtime/base/result.hpp"

namespace troupe {

/// Exit status of a process whose mapped file was cut, or could not be read from its disk, while it
/// was used (EX_IOERR of sysexits.h).
inline constexpr int kMappedFileLostStatus = 74;

/// Owns the read-only mapping of a whole file.
///
/// What is mapped is read at any later time, by any thread; if the file is cut, or its disk fails,
/// the system has no bytes to give and sends SIGBUS. Then the process says on its standard error
/// which file it was and ends with kMappedFileLostStatus.
class MappedFile {
 public:
  MappedFile() = default;
  /// Errors: kNotFound, kIo; both name the file.
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), watched_(std::exchange(other.watched_, nullptr)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(watched_, other.watched_);
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
  struct Watched;  ///< what the signal's handler knows of a mapping
  MappedFile(std::span<const std::byte> bytes, const std::filesystem::path& path);
  static Watched* watch(std::span<const std::byte> bytes, const std::filesystem::path& path);
  static void install_handler();
  static void handle_bus_error(int signal, siginfo_t* info, void* context);
  static std::atomic<Watched*> first_watched_;

  std::span<const std::byte> bytes_;
  Watched* watched_ = nullptr;
};

}  // namespace troupe
