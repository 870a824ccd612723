#pragma once
// Passes the cluster's secret to nodes that are started by hand on the Supervisor's host: through a
// file that only the same user can read.

#include <cstdint>
#include <string>
#include <utility>

#include "runtime/base/result.hpp"

namespace troupe {

/// $XDG_RUNTIME_DIR/troupe, or /tmp/troupe-UID if that is not set: a folder of this user's alone,
/// made if it is not there. Errors: kIo; it is another's, or others may look into it.
[[nodiscard]] Result<std::string> private_folder();
/// With this content, all of it or what it was. Only the same user can read it. Errors: kIo.
[[nodiscard]] Result<void> replace_private_file(const std::string& file,
                                                const std::string& content);

/// In the private folder.
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
