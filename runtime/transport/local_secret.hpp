#pragma once
// Passes the cluster's secret to nodes that are started by hand on the Supervisor's host: through a
// file that only the same user can read.

#include <cstdint>
#include <string>
#include <utility>

#include "runtime/base/result.hpp"

namespace troupe {

/// In $XDG_RUNTIME_DIR/troupe, or /tmp/troupe-UID if that is not set: a folder accessible to this
/// user only.
class LocalSecret {
 public:
  /// For the Supervisor that listens on this port. Errors: kIo; the folder belongs to, or is
  /// accessible to, another user.
  [[nodiscard]] static Result<LocalSecret> publish(std::uint16_t port, std::string secret);
  /// Removes the file, unless it was replaced.
  ~LocalSecret();
  LocalSecret(LocalSecret&& other) noexcept
      : file_(std::exchange(other.file_, {})), secret_(std::move(other.secret_)) {}
  LocalSecret& operator=(LocalSecret&&) = delete;

  /// Empty: there is no file, or it cannot be trusted.
  [[nodiscard]] static std::string find(std::uint16_t port);

 private:
  LocalSecret(std::string file, std::string secret)
      : file_(std::move(file)), secret_(std::move(secret)) {}

  std::string file_;
  std::string secret_;
};

}  // namespace troupe
