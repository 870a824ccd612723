#include "runtime/transport/secret_session.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/secret.hpp"

namespace troupe {
namespace {

/// The greeting of each side, with the protocol's version.
constexpr std::string_view kGreeting = "TROUPE/1";
constexpr std::size_t kChallengeBytes = 32;
constexpr std::size_t kAnswerBytes = 32;
constexpr std::size_t kHelloBytes = kGreeting.size() + kChallengeBytes;

}  // namespace

SecretSession::SecretSession(std::string secret, int socket, Side side)
    : secret_(std::move(secret)),
      socket_(socket),
      side_(side),
      word_bytes_(side == Side::kConnects ? kHelloBytes : kHelloBytes + kAnswerBytes) {
  fill_random(own_challenge_);
  if (side == Side::kAccepts) say_hello();
}

void SecretSession::say_hello() {
  unsent_.insert(unsent_.end(), kGreeting.begin(), kGreeting.end());
  unsent_.insert(unsent_.end(), own_challenge_.begin(), own_challenge_.end());
}

SecretSession::Code SecretSession::answer_of(Side side) const {
  std::string text = side == Side::kConnects ? "troupe connects" : "troupe accepts";
  const auto& acceptor = side_ == Side::kAccepts ? own_challenge_ : challenge_;
  const auto& connector = side_ == Side::kAccepts ? challenge_ : own_challenge_;
  text.append(acceptor.begin(), acceptor.end());
  text.append(connector.begin(), connector.end());
  return hmac_sha256(secret_, std::as_bytes(std::span(text)));
}

bool SecretSession::is_answer_of(Side side, std::string_view answer) {
  Code given;
  std::copy(answer.begin(), answer.end(), given.begin());
  if (same_secret(given, answer_of(side))) return true;
  error_ = "the peer does not know the secret";
  return false;
}

bool SecretSession::take_word() {
  std::string_view word = word_;
  if (!challenged_) {
    word.remove_prefix(kGreeting.size());
    std::copy_n(word.begin(), kChallengeBytes, challenge_.begin());
    word.remove_prefix(kChallengeBytes);
    challenged_ = true;
  }
  if (side_ == Side::kConnects && word.empty()) {
    say_hello();
  } else {
    const Side other = side_ == Side::kAccepts ? Side::kConnects : Side::kAccepts;
    if (!is_answer_of(other, word)) return false;
    established_ = true;
  }
  if (side_ == Side::kAccepts || !established_) {
    const Code answer = answer_of(side_);
    unsent_.insert(unsent_.end(), answer.begin(), answer.end());
  }
  if (established_) {
    unsent_.insert(unsent_.end(), early_.begin(), early_.end());
    early_.clear();
  }
  word_.clear();
  word_bytes_ = kAnswerBytes;
  return true;
}

bool SecretSession::wait_or_fail() {
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return true;
  // A peer that ends while data is on its way is like one that closes the connection.
  if (errno != ECONNRESET && errno != EPIPE) error_ = std::strerror(errno);
  return false;
}

bool SecretSession::flush() {
  while (!unsent_.empty()) {
    const ssize_t sent = send(socket_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      must_write_ = true;
      return wait_or_fail();
    }
    unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
  }
  return true;
}

bool SecretSession::shake_hands() {
  if (!error_.empty()) return false;
  while (!established_) {
    if (!flush()) return false;
    std::array<char, kHelloBytes + kAnswerBytes> bytes;
    // Exactly the expected message: later bytes do not belong to this handshake.
    const ssize_t received = recv(socket_, bytes.data(), word_bytes_ - word_.size(), 0);
    if (received < 0) return wait_or_fail();
    if (received == 0) {
      error_ = "closed during the handshake";
      if (challenged_) error_ += ": does it have another secret?";
      return false;
    }
    word_.append(bytes.data(), static_cast<std::size_t>(received));
    if (!challenged_ && !std::string_view(word_).starts_with(kGreeting.substr(0, word_.size()))) {
      error_ = "the peer is not a node, or has another version";
      return false;
    }
    if (word_.size() == word_bytes_ && !take_word()) return false;
  }
  return flush();
}

std::optional<std::size_t> SecretSession::read(std::span<char> into) {
  if (!established_ && !shake_hands()) return std::nullopt;
  if (!established_ || into.empty()) return 0;
  const ssize_t received = recv(socket_, into.data(), into.size(), 0);
  if (received > 0) return static_cast<std::size_t>(received);
  if (received == 0 || !wait_or_fail()) return std::nullopt;
  return 0;
}

std::optional<std::size_t> SecretSession::write(std::span<const char> from) {
  must_write_ = false;
  if (!established_ && !shake_hands()) return std::nullopt;
  if (!established_) return keep_early(from);
  if (!flush()) return std::nullopt;
  if (!unsent_.empty() || from.empty()) return 0;
  const ssize_t sent = send(socket_, from.data(), from.size(), MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (!wait_or_fail()) return std::nullopt;
  return 0;
}

}  // namespace troupe
