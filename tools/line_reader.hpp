#pragma once
// Lines of standard input, for commands that have something else to do while none comes.

#include <cstdint>
#include <string>

namespace troupe::tools {

/// Owns what has been read behind the last line. Reads the file descriptor itself: no other reader
/// may share it. Waiting for a line ends early when `interrupt_descriptor` (-1: none) is readable.
class LineReader {
 public:
  enum class Status : std::uint8_t {
    kLine,
    kEnd,
    kNothingYet,   ///< only if not told to wait
    kInterrupted,  ///< the other descriptor became readable while it waited
  };

  explicit LineReader(int descriptor, int interrupt_descriptor = -1)
      : descriptor_(descriptor), interrupt_descriptor_(interrupt_descriptor) {}
  /// Puts the next line, without its end, into `line`. A last line without an end counts.
  [[nodiscard]] Status next(std::string& line, bool wait);
  /// Bytes of all lines handed out.
  [[nodiscard]] std::uint64_t num_bytes() const noexcept { return num_bytes_; }

 private:
  int descriptor_;
  int interrupt_descriptor_;
  std::string buffer_;
  std::size_t searched_ = 0;  ///< of buffer_: holds no end of line before here
  std::uint64_t num_bytes_ = 0;
  bool ended_ = false;
};

}  // namespace troupe::tools
