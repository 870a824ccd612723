#pragma once
// One connection between nodes, under whatever proves who is at its other end.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// Does not own the socket, which is connected and does not block. Used by one thread at a time;
/// established() by any.
class Session {
 public:
  enum class Side : std::uint8_t { kConnects, kAccepts };

  virtual ~Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Both return the number of bytes; 0: the socket has to become ready first. nullopt: the
  /// connection is over, see error(). Before the handshake is done write keeps what it is given, at
  /// most kMaxEarlyBytes, and a later read sends it: who waits to write would spin meanwhile.
  virtual std::optional<std::size_t> read(std::span<char> into) = 0;
  virtual std::optional<std::size_t> write(std::span<const char> from) = 0;

  /// Both sides have shown who they are; of whoever connected, that is not yet to say that the
  /// other side has taken it.
  [[nodiscard]] bool established() const noexcept { return established_; }
  /// Something is left to be written when the socket takes it: write must be called, if with
  /// nothing.
  [[nodiscard]] bool must_write() const noexcept { return must_write_; }
  /// Why it is over; empty: the other side has closed it.
  [[nodiscard]] const std::string& error() const noexcept { return error_; }

  static constexpr std::size_t kMaxEarlyBytes = 64 << 10;

 protected:
  Session() = default;
  /// What is written before the handshake is done. The answer is that of write.
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
