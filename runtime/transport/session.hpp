#pragma once
// One authenticated connection between nodes.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// Does not own the socket, which is connected and non-blocking. Used by one thread at a time;
/// established() by any.
class Session {
 public:
  enum class Side : std::uint8_t { kConnects, kAccepts };

  virtual ~Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Both return the number of bytes; 0: wait until the socket is ready. nullopt: the connection
  /// has ended, see error(). Before the handshake is done, write buffers up to kMaxEarlyBytes,
  /// which a later read sends; otherwise a caller waiting to write would spin.
  virtual std::optional<std::size_t> read(std::span<char> into) = 0;
  virtual std::optional<std::size_t> write(std::span<const char> from) = 0;

  /// Both sides have authenticated; for the connecting side this does not yet mean that the other
  /// side has accepted it.
  [[nodiscard]] bool established() const noexcept { return established_; }
  /// Buffered data is to be written when the socket is ready: write must be called, possibly with
  /// nothing.
  [[nodiscard]] bool must_write() const noexcept { return must_write_; }
  /// Why it ended; empty: the peer has closed it.
  [[nodiscard]] const std::string& error() const noexcept { return error_; }

  static constexpr std::size_t kMaxEarlyBytes = 64 << 10;

 protected:
  Session() = default;
  /// Buffers data written before the handshake is done. Returns the result of write.
  std::optional<std::size_t> keep_early(std::span<const char> from) {
    if (early_.size() + from.size() > kMaxEarlyBytes) {
      error_ = "more than " + std::to_string(kMaxEarlyBytes) + " bytes before the handshake";
      return std::nullopt;
    }
    early_.insert(early_.end(), from.begin(), from.end());
    return from.size();
  }

  std::vector<char> early_;
  std::string error_;
  std::atomic<bool> established_ = false;
  bool must_write_ = false;
};

}  // namespace troupe
