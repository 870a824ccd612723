#pragma once
// A connection between ranks of two engines, and where a rank can be reached.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/peer_messages.hpp"
#include "runtime/transport/credentials.hpp"

namespace troupe {

/// As text "LOCAL|HOST:PORT": a Unix socket of this host (without a name in the file system), and
/// an address for other hosts; each may be missing.
struct PeerEndpoint {
  std::string local;
  std::string host;
  std::uint16_t port = 0;
  bool operator==(const PeerEndpoint&) const = default;
};
[[nodiscard]] std::string to_text(const PeerEndpoint& endpoint);
/// Errors: kInvalidArgument.
[[nodiscard]] Result<PeerEndpoint> parse_peer_endpoint(const std::string& text);

using SteadyTime = std::chrono::steady_clock::time_point;

/// Used by one thread. Blocks until a deadline, or until `stop` is readable. After an error it is
/// of no use any more.
class PeerLink {
 public:
  static constexpr std::size_t kMaxFrameBytes = 8 << 20;

  /// `session`: null for a connection within the host. `stop`: a descriptor that outlives it, or
  /// -1.
  PeerLink(FileDescriptor socket, std::shared_ptr<Session> session, int stop);
  /// Errors: kUnavailable, kTimeout, naming the endpoint.
  [[nodiscard]] static Result<std::unique_ptr<PeerLink>> connect(
      const PeerEndpoint& endpoint, const std::shared_ptr<const Credentials>& credentials, int stop,
      std::chrono::milliseconds timeout);

  /// Whether memory can be shared.
  [[nodiscard]] bool is_local() const noexcept { return session_ == nullptr; }
  /// Sends a frame; with it, if it is local, the descriptor `file` unless it is -1.
  Result<void> send(const PeerMessage& message, SteadyTime deadline, int file = -1);
  Result<void> send_bytes(std::span<const std::byte> bytes, SteadyTime deadline);
  /// The next frame. `idle`: for its first byte; `timeout`: from then on. `file` gets the
  /// descriptor that came with it, if any.
  [[nodiscard]] Result<PeerMessage> receive(std::optional<SteadyTime> idle,
                                            std::chrono::milliseconds timeout,
                                            FileDescriptor* file = nullptr);
  Result<void> receive_bytes(std::span<std::byte> bytes, SteadyTime deadline);

 private:
  Result<void> write_all(std::span<const char> bytes, SteadyTime deadline, int file);
  Result<void> read_all(std::span<char> bytes, std::optional<SteadyTime> deadline,
                        FileDescriptor* file);
  Result<void> wait(short events, std::optional<SteadyTime> deadline) const;

  FileDescriptor socket_;
  std::shared_ptr<Session> session_;
  int stop_;
};

}  // namespace troupe
