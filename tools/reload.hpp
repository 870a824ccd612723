#pragma once
// SIGHUP: reloads settings that can change at run time.

#include <atomic>
#include <csignal>
#include <thread>

#include "runtime/config/options.hpp"

namespace troupe::tools {

/// Reloads the options, applies the log level, and triggers a reload of API keys. (Certificates are
/// reloaded whenever their files change.) Errors are logged and change nothing. Child processes do
/// the same. Pre: the options came from a command line.
void reload(const Options& options);

/// Handles SIGHUP in a process that handles no other signal. Created before other threads; the
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
