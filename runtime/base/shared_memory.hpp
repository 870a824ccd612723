#pragma once
// Memory that the processes of one host share.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/result.hpp"

namespace boost::interprocess {
class mapped_region;
}

namespace troupe {

/// Owns a memfd and its mapping by Boost.Interprocess, readable and writable.
///
/// The segment has no name in the file system, in contrast to
/// boost::interprocess::shared_memory_object: a process that is killed leaves nothing behind, and
/// the limits of /dev/shm do not apply. Its size is sealed: no process can truncate it while others
/// use it. It is freed when the last process has closed and unmapped it.
class SharedMemory {
 public:
  SharedMemory() noexcept;
  /// A new segment of zeros. `name` is shown in /proc/PID/maps. Errors: kIo.
  [[nodiscard]] static Result<SharedMemory> create(const char* name, std::size_t num_bytes);
  /// Maps a segment of another process. Errors: kCorrupt if `file` is not a segment of `num_bytes`,
  /// kIo.
  [[nodiscard]] static Result<SharedMemory> map(FileDescriptor file, std::size_t num_bytes);
  /// The size of the segment behind `file`; nullopt if it is another kind of file.
  [[nodiscard]] static std::optional<std::size_t> segment_bytes(const FileDescriptor& file);
  SharedMemory(SharedMemory&&) noexcept;
  SharedMemory& operator=(SharedMemory&&) noexcept;
  ~SharedMemory();

  /// For map() in another process.
  [[nodiscard]] const FileDescriptor& file() const noexcept { return file_; }
  /// Page-aligned.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept;

 private:
  FileDescriptor file_;
  std::unique_ptr<boost::interprocess::mapped_region> region_;
};

}  // namespace troupe
