#pragma once
// SIGHUP: settings that can change while the process runs are read again.

#include <atomic>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "tools/commands.hpp"

namespace troupe::tools {

/// Reads options again as they were read at the start, and takes the log level from them; has API
/// keys read again. (Certificates are, whenever their files are new.) Errors are logged, and change
/// nothing. The processes that this one has started do the same.
void reload(const std::vector<std::string>& arguments);

/// Takes SIGHUP for a process that takes no other signal. Made before there is another thread.
class ReloadSignal {
 public:
  explicit ReloadSignal(std::vector<std::string> arguments);
  ~ReloadSignal();
  ReloadSignal(const ReloadSignal&) = delete;
  ReloadSignal& operator=(const ReloadSignal&) = delete;

 private:
  sigset_t set_{};
  std::vector<std::string> arguments_;
  std::atomic<bool> stopping_ = false;
  std::thread taker_;
};

}  // namespace troupe::tools
