#pragma once
// Ctrl-C in a conversation.

namespace troupe::tools {

/// Ctrl-C as a pipe that becomes readable: it interrupts waiting for input, and stops an answer.
/// One at a time.
class Interrupt {
 public:
  /// Without a terminal, Ctrl-C ends the program.
  explicit Interrupt(bool terminal);
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt();

  [[nodiscard]] int descriptor() const noexcept { return read_end_; }
  /// Whether Ctrl-C was pressed since the last call.
  [[nodiscard]] bool take();

 private:
  int read_end_ = -1;
};

}  // namespace troupe::tools
