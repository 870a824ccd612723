#pragma once
// Reads of several files at once.

#include <cstddef>
#include <memory>
#include <span>

namespace troupe {

/// Through io_uring, so that the disk has several reads to do at a time; where the kernel has none,
/// or a sandbox forbids it, one after the other. Used by one thread.
class BatchReader {
 public:
  BatchReader();
  ~BatchReader();
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  struct Read {
    int file = -1;
    std::span<std::byte> to;   ///< what the file has from its beginning
    std::size_t num_read = 0;  ///< less: the file is shorter
    int error = 0;             ///< errno
  };
  void read(std::span<Read> reads);

  [[nodiscard]] bool has_ring() const noexcept { return ring_ != nullptr; }

 private:
  class Ring;
  std::unique_ptr<Ring> ring_;  // null: one after the other
};

}  // namespace troupe
