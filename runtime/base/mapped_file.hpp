#pragma once
// Read-only file mappings.

#include <atomic>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// Exit status of a process whose mapped file was truncated, or had a read error, while in use
/// (EX_IOERR of sysexits.h).
inline constexpr int kMappedFileLostStatus = 74;

/// Owns the read-only mapping of a whole file.
///
/// Pages are read at any later time, by any thread; if the file is truncated or its disk fails, the
/// kernel sends SIGBUS. The process then names the file on standard error and exits with
/// kMappedFileLostStatus, unless report_loss() was called.
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
  /// Reads the pages of `part`, a part of the file, so that later accesses do not wait for the
  /// disk. Errors: kIo, without the file's name.
  [[nodiscard]] Result<void> read_in(std::span<const std::byte> part) const;
  /// From now on lost pages read as 0xff (or zero, up to the end of a page) and the process
  /// continues; results are valid only if check() succeeds afterwards. Without 1 MiB of memory for
  /// this the process exits as before.
  void report_loss() const noexcept;
  /// Verifies that all bytes read so far came from the file. Errors: kIo (truncated, or disk
  /// failure), with its name.
  [[nodiscard]] Result<void> check() const;
  /// Drops the whole pages in `part`, if it is a part of the file, from memory; later accesses read
  /// them again from the page cache or the disk.
  void drop_pages(std::span<const std::byte> part) const noexcept;

 private:
  struct Watched;  ///< what the signal handler knows of a mapping
  MappedFile(FileDescriptor file, std::span<const std::byte> bytes,
             const std::filesystem::path& path);
  static Watched* watch(std::span<const std::byte> bytes, const std::filesystem::path& path);
  static void install_handler();
  static void handle_bus_error(int signal, siginfo_t* info, void* context);
  static std::atomic<Watched*> first_watched_;

  FileDescriptor file_;  ///< to compare its size: the rest of the last page reads as zeros
  std::span<const std::byte> bytes_;
  Watched* watched_ = nullptr;
};

}  // namespace troupe
