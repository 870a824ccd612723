#pragma once
// One client's connection to the cache server, without its socket.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "runtime/cache_server/client_tokens.hpp"
#include "runtime/cache_server/value_store.hpp"
#include "runtime/kv_transfer/lmcache/lm_protocol.hpp"
#include "runtime/metrics/registry.hpp"

namespace troupe {

struct LmMetrics {
  explicit LmMetrics(Registry& registry);

  Metric &puts, &refused_puts, &hits, &misses, &exist_hits, &exist_misses, &others, &unauthorized;
  Metric &received_bytes, &sent_bytes;
};

/// Answers requests in order, those that come together by one output as far as they have no values.
/// The transport receives into input() and calls received(); while there is an output() it sends
/// that first. A request that is no request ends the connection.
class LmSession {
 public:
  /// Asks for a value that is on disk: loaded() is to be called, later or at once.
  using Load = std::function<void(const CacheKey& key)>;

  LmSession(CacheStore& store, const ClientTokens& tokens, LmMetrics& metrics, Load load)
      : store_(store), tokens_(tokens), metrics_(metrics), load_(std::move(load)) {}

  /// Where the next bytes go; empty: something is to be sent first, or loaded.
  [[nodiscard]] std::span<char> input() noexcept;
  void received(std::size_t num_bytes);
  void loaded(CacheValuePtr value);

  /// The heads of replies, then the last one's value if it has any. Empty: nothing is to be sent.
  struct Output {
    std::span<const char> head;
    std::span<const char> body;
    [[nodiscard]] bool empty() const noexcept { return head.empty() && body.empty(); }
  };
  [[nodiscard]] Output output() const noexcept;
  void sent(std::size_t num_bytes);

  /// A part of a request has come, and the rest is missing.
  [[nodiscard]] bool in_request() const noexcept { return num_received_ > 0 || payload_left_ > 0; }
  [[nodiscard]] bool loading() const noexcept { return loading_; }
  /// Why the connection must be closed; empty: it stays open.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

 private:
  static constexpr std::size_t kMaxTokenBytes = 4096;
  static constexpr std::size_t kDiscardBytes = 64 << 10;
  // Clients that send many requests at once get the larger one: there may be thousands of others.
  static constexpr std::size_t kMinInputBytes = 1 << 10;
  static constexpr std::size_t kMaxInputBytes = 16 << 10;
  static_assert(kMinInputBytes >= lmcache::kLmRequestBytes);

  /// Until a value is to be sent or loaded.
  void answer_received();
  void begin_request(std::span<const char, lmcache::kLmRequestBytes> header);
  /// Where the rest of a request's payload goes.
  [[nodiscard]] std::span<char> payload() noexcept;
  void received_payload(std::size_t num_bytes);
  void end_payload();
  void reply(lmcache::LmCode code, CacheValuePtr value = nullptr);
  void reply_value(CacheValuePtr value);
  [[nodiscard]] CacheKey key_of(std::string key) const;

  CacheStore& store_;
  const ClientTokens& tokens_;
  LmMetrics& metrics_;
  const Load load_;
  std::optional<std::string> owner_;  // of the token that came

  std::vector<char> received_ = std::vector<char>(kMinInputBytes);  // and beginnings of payloads
  std::size_t num_received_ = 0;
  lmcache::LmRequest request_;
  std::size_t payload_left_ = 0;
  CacheStore::Reservation reservation_;  // of a value that is being received
  std::string token_;                    // of kAuth
  std::vector<char> discarded_;          // receives bytes that are ignored

  bool loading_ = false;
  std::string heads_;
  CacheValuePtr body_;
  std::size_t num_sent_ = 0;  // bytes, heads and body
  std::string problem_;
};

}  // namespace troupe
