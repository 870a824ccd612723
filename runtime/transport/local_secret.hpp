#pragma once
// Where a node that is started by hand on the Supervisor's host finds the cluster's secret: a file
// that only the same user can read.

#include <cstdint>
#include <string>
#include <utility>

#include "runtime/base/result.hpp"

namespace troupe {

/// In $XDG_RUNTIME_DIR/troupe, or /tmp/troupe-UID if that is not set: a folder of this user's
/// alone.
class LocalSecret {
 public:
  /// For the Supervisor that listens on this port. Errors: kIo; the folder is another's, or others
  /// may look into it.
  [[nodiscard]] static Result<LocalSecret> publish(std::uint16_t port, std::string secret);
  /// Removes the file, if it is still this one.
  ~LocalSecret();
  LocalSecret(LocalSecret&& other) noexcept
      : file_(std::exchange(other.file_, {})), secret_(std::move(other.secret_)) {}
  LocalSecret& operator=(LocalSecret&&) = delete;

  /// Empty: there is none, or it is not to be trusted.
  [[nodiscard]] static std::string find(std::uint16_t port);

 private:
  LocalSecret(std::string file, std::string secret)
      : file_(std::move(file)), secret_(std::move(secret)) {}

  std::string file_;
  std::string secret_;
};

}  // namespace troupe
