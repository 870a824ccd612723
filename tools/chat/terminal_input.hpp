#pragma once
// Terminal input with line editing, a history, and multi-line pastes.

#include <cstdint>
#include <memory>
#include <string>

#include "tools/chat/interrupt.hpp"

namespace troupe::tools {

/// Owns the editor (libedit) and the history, which is kept in memory only. Input is echoed to
/// standard error. A multi-line paste (bracketed paste) is part of one message. One at a time;
/// standard input must be a terminal.
class TerminalInput {
 public:
  enum class Status : std::uint8_t { kMessage, kInterrupted, kEnd };

  TerminalInput(std::string prompt, Interrupt& interrupt);
  ~TerminalInput();
  TerminalInput(const TerminalInput&) = delete;
  TerminalInput& operator=(const TerminalInput&) = delete;

  /// Waits for a message, in UTF-8, without the end of its last line.
  [[nodiscard]] Status next(std::string& message);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The text of a paste: lines end in '
/// ', and control characters that could move the cursor or act as keys are removed.
[[nodiscard]] std::wstring clean_paste(const std::wstring& pasted);

}  // namespace troupe::tools
