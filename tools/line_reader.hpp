#pragma once
// Reads lines of standard input without blocking other work.

#include <cstdint>
#include <string>

namespace troupe::tools {

/// Owns data read after the last line. Reads the file descriptor directly: it must not be shared
/// with other readers. Waiting for a line ends early when `interrupt_descriptor` (-1: none) is
/// readable.
class LineReader {
 public:
  enum class Status : std::uint8_t {
    kLine,
    kEnd,
    kNothingYet,   ///< only without waiting
    kInterrupted,  ///< the interrupt descriptor became readable
  };

  explicit LineReader(int descriptor, int interrupt_descriptor = -1)
      : descriptor_(descriptor), interrupt_descriptor_(interrupt_descriptor) {}
  /// Stores the next line, without its end, in `line`. A last line without an end counts.
  [[nodiscard]] Status next(std::string& line, bool wait);
  /// Total size of the lines returned so far.
  [[nodiscard]] std::uint64_t num_bytes() const noexcept { return num_bytes_; }

 private:
  int descriptor_;
  int interrupt_descriptor_;
  std::string buffer_;
  std::size_t searched_ = 0;  ///< in buffer_: there is no line end before this position
  std::uint64_t num_bytes_ = 0;
  bool ended_ = false;
};

}  // namespace troupe::tools
