#include "runtime/cache_server/lm_session.hpp"

#include <algorithm>
#include <cstring>

namespace troupe {
namespace {

using lmcache::LmCode;
using lmcache::LmCommand;

Metric& request_counter(Registry& registry, const char* command, const char* result) {
  return registry.counter("troupe_cache_requests", "Requests that were answered.",
                          {{"command", command}, {"result", result}});
}

}  // namespace

LmMetrics::LmMetrics(Registry& registry)
    : puts(request_counter(registry, "put", "stored")),
      refused_puts(request_counter(registry, "put", "refused")),
      hits(request_counter(registry, "get", "hit")),
      misses(request_counter(registry, "get", "miss")),
      exist_hits(request_counter(registry, "exist", "hit")),
      exist_misses(request_counter(registry, "exist", "miss")),
      others(request_counter(registry, "other", "done")),
      unauthorized(request_counter(registry, "any", "unauthorized")),
      received_bytes(registry.counter("troupe_cache_received_bytes", "Bytes of values.", {})),
      sent_bytes(registry.counter("troupe_cache_sent_bytes", "Bytes of values.", {})) {}

std::span<char> LmSession::input() noexcept {
  if (!heads_.empty() || loading_ || !problem_.empty()) return {};
  return payload_left_ > 0 ? payload() : std::span(received_).subspan(num_received_);
}

std::span<char> LmSession::payload() noexcept {
  if (reservation_.granted()) return reservation_.bytes().last(payload_left_);
  if (!token_.empty()) return std::span(token_).last(payload_left_);
  discarded_.resize(kDiscardBytes);
  return std::span(discarded_).first(std::min(payload_left_, discarded_.size()));
}

void LmSession::received(std::size_t num_bytes) {
  if (payload_left_ > 0) return received_payload(num_bytes);
  num_received_ += num_bytes;
  const bool is_full = num_received_ == received_.size();
  answer_received();
  if (is_full) received_.resize(kMaxInputBytes);
}

void LmSession::answer_received() {
  std::span<char> rest = std::span(received_).first(num_received_);
  while (!loading_ && body_ == nullptr && problem_.empty()) {
    if (payload_left_ > 0) {
      const std::span<char> to = payload();
      const std::span<char> part = rest.first(std::min(rest.size(), to.size()));
      if (part.empty()) break;
      std::ranges::copy(part, to.begin());
      if (!token_.empty()) std::ranges::fill(part, '\0');
      rest = rest.subspan(part.size());
      received_payload(part.size());
    } else {
      if (rest.size() < lmcache::kLmRequestBytes) break;
      begin_request(rest.first<lmcache::kLmRequestBytes>());
      rest = rest.subspan(lmcache::kLmRequestBytes);
    }
  }
  std::memmove(received_.data(), rest.data(), rest.size());
  num_received_ = rest.size();
}

void LmSession::received_payload(std::size_t num_bytes) {
  payload_left_ -= num_bytes;
  if (payload_left_ == 0) end_payload();
}

CacheKey LmSession::key_of(std::string key) const {
  return {owner_.value_or(std::string()), std::move(key)};
}

void LmSession::begin_request(std::span<const char, lmcache::kLmRequestBytes> header) {
  auto parsed = lmcache::parse_lm_request(header);
  if (!parsed.ok()) {
    problem_ = parsed.error().message;
    return;
  }
  request_ = std::move(*parsed);
  payload_left_ = 0;
  if (request_.command == LmCommand::kAuth) {
    if (request_.length == 0 || request_.length > static_cast<std::int32_t>(kMaxTokenBytes)) {
      problem_ = "the token has " + std::to_string(request_.length) + " bytes";
      return;
    }
    payload_left_ = static_cast<std::size_t>(request_.length);
    token_.resize(payload_left_);
    return;
  }
  const bool allowed = owner_.has_value() || !tokens_.needed();
  if (!allowed) metrics_.unauthorized.add();
  switch (request_.command) {
    case LmCommand::kPut:
      payload_left_ = static_cast<std::size_t>(request_.length);
      // torch.half is torch.float16.
      if (request_.info.dtype == lmcache::TensorDtype::kHalf)
        request_.info.dtype = lmcache::TensorDtype::kFloat16;
      if (allowed) reservation_ = store_.reserve(request_.info, request_.length);
      if (!reservation_.granted()) metrics_.refused_puts.add();
      if (payload_left_ == 0) end_payload();
      return;
    case LmCommand::kGet: {
      if (!allowed) return reply(LmCode::kFail);
      CacheKey key = key_of(std::move(request_.key));
      CacheStore::Found found = store_.get(key);
      if (!found.on_disk) return reply_value(std::move(found.value));
      loading_ = true;
      load_(key);
      return;
    }
    case LmCommand::kExist: {
      const bool exists = allowed && store_.has(key_of(std::move(request_.key)));
      (exists ? metrics_.exist_hits : metrics_.exist_misses).add();
      return reply(exists ? LmCode::kSuccess : LmCode::kFail);
    }
    case LmCommand::kHealth:
      metrics_.others.add();
      return reply(LmCode::kSuccess);
    case LmCommand::kList:  // LMCache's server does not answer it either
    case LmCommand::kAuth:
      return;
  }
}

void LmSession::end_payload() {
  if (request_.command == LmCommand::kAuth) {
    owner_ = tokens_.needed() ? tokens_.owner(token_) : std::optional<std::string>("");
    std::ranges::fill(token_, '\0');
    token_.clear();
    metrics_.others.add();
    return reply(owner_ ? LmCode::kSuccess : LmCode::kFail);
  }
  metrics_.received_bytes.add(request_.length);
  if (!reservation_.granted()) return;
  metrics_.puts.add();
  store_.put(key_of(std::move(request_.key)), std::move(reservation_));
  reservation_ = {};
}

void LmSession::loaded(CacheValuePtr value) {
  loading_ = false;
  reply_value(std::move(value));
}

void LmSession::reply_value(CacheValuePtr value) {
  (value != nullptr ? metrics_.hits : metrics_.misses).add();
  const LmCode code = value != nullptr ? LmCode::kSuccess : LmCode::kFail;
  reply(code, std::move(value));
}

void LmSession::reply(LmCode code, CacheValuePtr value) {
  lmcache::LmReply reply{.code = code};
  body_ = std::move(value);
  if (body_ != nullptr) {
    reply.length = static_cast<std::int32_t>(body_->size());
    reply.info = body_->info();
  }
  const auto head = lmcache::pack_lm_reply(reply);
  heads_.append(head.data(), head.size());
}

LmSession::Output LmSession::output() const noexcept {
  const std::span<const char> body =
      body_ != nullptr ? std::as_const(*body_).bytes() : std::span<const char>();
  if (num_sent_ < heads_.size()) return {std::span(heads_).subspan(num_sent_), body};
  return {{}, body.subspan(num_sent_ - heads_.size())};
}

void LmSession::sent(std::size_t num_bytes) {
  num_sent_ += num_bytes;
  const std::size_t body_bytes = body_ != nullptr ? body_->size() : 0;
  if (num_sent_ < heads_.size() + body_bytes) return;
  metrics_.sent_bytes.add(static_cast<double>(body_bytes));
  body_.reset();
  heads_.clear();
  num_sent_ = 0;
  answer_received();
}

}  // namespace troupe
