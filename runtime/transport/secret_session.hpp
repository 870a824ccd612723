#pragma once
// A connection whose two ends have shown each other that they know the same secret. What follows is
// neither encrypted nor signed: it is for connections that nobody can listen to or change, such as
// those within a host. Between hosts there is TLS.

#include <array>
#include <string>
#include <string_view>

#include "runtime/transport/session.hpp"

namespace troupe {

/// Each side answers the other's random challenge with an HMAC-SHA256 of both challenges and its
/// own side, so that an answer is of no use on another connection or to the other side. Whoever
/// connects answers first; it is told nothing before.
class SecretSession : public Session {
 public:
  SecretSession(std::string secret, int socket, Side side);

  std::optional<std::size_t> read(std::span<char> into) override;
  std::optional<std::size_t> write(std::span<const char> from) override;

 private:
  using Code = std::array<std::uint8_t, 32>;

  /// False: over.
  bool shake_hands();
  /// Looks at the other side's word, which is complete.
  bool take_word();
  bool flush();
  /// What became of a call that returned -1; false: over.
  bool wait_or_fail();
  void say_hello();
  [[nodiscard]] Code answer_of(Side side) const;
  bool is_answer_of(Side side, std::string_view answer);

  const std::string secret_;
  const int socket_;
  const Side side_;
  std::array<std::uint8_t, 32> own_challenge_{};
  std::array<std::uint8_t, 32> challenge_{};  // the other side's
  bool challenged_ = false;                   // the other side has said its challenge
  std::string word_;                          // what has come of the other side's next word
  std::size_t word_bytes_;                    // the length that it is to have
  std::vector<char> unsent_;
};

}  // namespace troupe
