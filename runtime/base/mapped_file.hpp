#pragma once
// Files mapped to be read.

#include <atomic>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// Exit status of a process whose mapped file was cut, or could not be read from its disk, while it
/// was used (EX_IOERR of sysexits.h).
inline constexpr int kMappedFileLostStatus = 74;

/// Owns the read-only mapping of a whole file.
///
/// What is mapped is read at any later time, by any thread; if the file is cut, or its disk fails,
/// the system has no bytes to give and sends SIGBUS. Then the process says on its standard error
/// which file it was and ends with kMappedFileLostStatus; after report_loss() it goes on.
class MappedFile {
 public:
  MappedFile() = default;
  /// Errors: kNotFound, kIo; both name the file.
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept
      : file_(std::move(other.file_)),
        bytes_(std::exchange(other.bytes_, {})),
        watched_(std::exchange(other.watched_, nullptr)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(bytes_, other.bytes_);
    std::swap(watched_, other.watched_);
    return *this;
  }
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  /// Reads the pages of `part`, a part of the file, so that whoever comes later does not wait.
  /// Errors: kIo, without the file's name.
  [[nodiscard]] Result<void> read_in(std::span<const std::byte> part) const;
  /// From now on lost bytes are read as 0xff (or zero, to the end of a page), on which nobody may
  /// rely who has not asked check() afterwards. Without 1 MiB of memory the process ends as ever.
  void report_loss() const noexcept;
  /// What has been read was the file's. Errors: kIo (it was cut, or its disk failed), naming it.
  [[nodiscard]] Result<void> check() const;
  /// Gives up the memory of the whole pages in `part`, if it is a part of the file; whoever reads
  /// them again gets them from the system's cache or the disk.
  void drop_pages(std::span<const std::byte> part) const noexcept;

 private:
  struct Watched;  ///< what the signal's handler knows of a mapping
  MappedFile(FileDescriptor file, std::span<const std::byte> bytes,
             const std::filesystem::path& path);
  static Watched* watch(std::span<const std::byte> bytes, const std::filesystem::path& path);
  static void install_handler();
  static void handle_bus_error(int signal, siginfo_t* info, void* context);
  static std::atomic<Watched*> first_watched_;

  FileDescriptor file_;  ///< its size is compared: the rest of the last page reads as zeros
  std::span<const std::byte> bytes_;
  Watched* watched_ = nullptr;
};

}  // namespace troupe
