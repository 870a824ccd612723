#pragma once
// A connection whose ends have proved to each other that they know the same secret. Traffic is
// neither encrypted nor signed: it is for connections that cannot be intercepted, such as those
// within a host. TLS is for connections between hosts.

#include <array>
#include <string>
#include <string_view>

#include "runtime/transport/session.hpp"

namespace troupe {

/// Each side replies to the other's random challenge with an HMAC-SHA256 of both challenges and its
/// own side, so that a reply is useless on another connection or for the other side. The connecting
/// side replies first; it gets no proof before.
class SecretSession : public Session {
 public:
  SecretSession(std::string secret, int socket, Side side);

  std::optional<std::size_t> read(std::span<char> into) override;
  std::optional<std::size_t> write(std::span<const char> from) override;

 private:
  using Code = std::array<std::uint8_t, 32>;

  /// False: the connection has ended.
  bool shake_hands();
  /// Processes the other side's message, which is complete.
  bool take_word();
  bool flush();
  /// Handles a call that returned -1; false: the connection has ended.
  bool wait_or_fail();
  void say_hello();
  [[nodiscard]] Code answer_of(Side side) const;
  bool is_answer_of(Side side, std::string_view answer);

  const std::string secret_;
  const int socket_;
  const Side side_;
  std::array<std::uint8_t, 32> own_challenge_{};
  std::array<std::uint8_t, 32> challenge_{};  // the other side's
  bool challenged_ = false;                   // the other side's challenge was received
  std::string word_;                          // received part of the other side's next message
  std::size_t word_bytes_;                    // its expected length
  std::vector<char> unsent_;
};

}  // namespace troupe
