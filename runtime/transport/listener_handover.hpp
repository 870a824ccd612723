#pragma once
// Passes the listening socket of an HTTP server to the server that replaces it: both accept from
// the same queue for a while, so that no connection is refused or reset in between.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// Offers a listening socket on a Unix socket in the private folder of this user, which only this
/// user can reach. A later offer for the same address replaces this one.
class ListenerHandover {
 public:
  /// `on_taken` is called from another thread before the socket is passed. The caller keeps
  /// `listener` open as long as this object lives. Errors: kIo.
  [[nodiscard]] static Result<std::unique_ptr<ListenerHandover>> offer(
      const std::string& host, std::uint16_t port, int listener, std::function<void()> on_taken);
  /// Ends the offer.
  ~ListenerHandover();
  ListenerHandover(const ListenerHandover&) = delete;
  ListenerHandover& operator=(const ListenerHandover&) = delete;

  /// The listening socket of the server at this address. None: no server offers it.
  [[nodiscard]] static std::optional<FileDescriptor> take(const std::string& host,
                                                          std::uint16_t port);

 private:
  ListenerHandover(std::string path, std::uint64_t inode, FileDescriptor door, int listener,
                   std::function<void()> on_taken);
  void serve();

  const std::string path_;
  const std::uint64_t inode_;  ///< of the file that this object has made
  const FileDescriptor door_;
  const int listener_;
  const std::function<void()> on_taken_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace troupe
