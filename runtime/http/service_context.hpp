#pragma once
// The part of a service that its exchanges use.

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "runtime/http/api_keys.hpp"
#include "runtime/http/served_model.hpp"
#include "runtime/http/service.hpp"

namespace troupe {

class Generation;
class Rendering;

struct ServiceContext {
  const ServiceConfig& config;
  const ServiceEnvironment environment;
  ServiceCounters& counters;
  EnginePort& port;
  EngineMetrics& metrics;
  const ApiKeys& api_keys;

  std::unordered_map<RequestId, Generation*> live;  ///< by the id of each GenerateRequest
  std::unordered_map<std::uint64_t, Rendering*> renderings;
  std::uint64_t next_rendering = 0;
  /// Responses in the background, by id.
  std::unordered_map<std::string, std::unique_ptr<ResponseSink>> background;

  /// 128 random bits as 32 lower-case hex digits: an unguessable id.
  [[nodiscard]] std::string random_id() const;
  /// The number of the tenant that a request is from, see ApiKeys::tenant.
  [[nodiscard]] std::uint32_t tenant_of(const HttpRequest& http) const {
    return http.owner ? api_keys.tenant_of_id(http.owner->key)
                      : api_keys.tenant(http.authorization());
  }
  /// What a request's `model` stands for. Errors: those of find_served_model; kUnavailable, no
  /// engine has told its adapters yet.
  [[nodiscard]] Result<ServedModel> resolve_model(const std::string& model) const;
};

/// A request that counts for the limits of its API key, until this is destroyed.
class KeyUse {
 public:
  /// Pre: begin_request has admitted it.
  KeyUse(const ServiceContext& context, std::uint32_t tenant)
      : context_(context), tenant_(tenant) {}
  ~KeyUse() { context_.api_keys.end_request(tenant_); }
  KeyUse(const KeyUse&) = delete;
  KeyUse& operator=(const KeyUse&) = delete;

  void spend_tokens(std::int64_t num_tokens) const {
    context_.api_keys.spend_tokens(tenant_, num_tokens, context_.environment.steady_clock());
  }

 private:
  const ServiceContext& context_;
  const std::uint32_t tenant_;
};

/// Counts live exchanges, so that draining can wait for the last one.
class ExchangeCount {
 public:
  explicit ExchangeCount(ServiceContext& context) : context_(context) {
    ++context_.counters.num_exchanges;
  }
  ~ExchangeCount() {
    --context_.counters.num_exchanges;
    if (context_.environment.exchange_ended) context_.environment.exchange_ended();
  }
  ExchangeCount(const ExchangeCount&) = delete;
  ExchangeCount& operator=(const ExchangeCount&) = delete;

 private:
  ServiceContext& context_;
};

}  // namespace troupe
