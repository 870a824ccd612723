#pragma once
// SIGHUP: settings that can change while the process runs are read again.

#include <atomic>
#include <csignal>
#include <thread>

#include "runtime/config/options.hpp"

namespace troupe::tools {

/// Reads options again, and takes the log level from them; has API keys read again. (Certificates
/// are, whenever their files are new.) Errors are logged, and change nothing. The processes that
/// this one has started do the same. Pre: the options came from a command line.
void reload(const Options& options);

/// Takes SIGHUP for a process that takes no other signal. Made before there is another thread; the
/// options outlive it.
class ReloadSignal {
 public:
  explicit ReloadSignal(const Options& options);
  ~ReloadSignal();
  ReloadSignal(const ReloadSignal&) = delete;
  ReloadSignal& operator=(const ReloadSignal&) = delete;

 private:
  sigset_t set_{};
  const Options& options_;
  std::atomic<bool> stopping_ = false;
  std::thread taker_;
};

}  // namespace troupe::tools
