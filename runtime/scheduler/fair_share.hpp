#pragma once
// Fair queueing of tenants.

#include <cstdint>
#include <unordered_map>

namespace troupe {

/// The Virtual Token Counter (VTC: Sheng et al., "Fairness in Serving Large Language Models", arXiv
/// 2401.00588): fair queueing whose virtual time is the work done for each tenant. Owns a counter
/// per tenant, in computed prompt tokens; an output token weighs kOutputTokenWeight of them. A
/// tenant that becomes active again starts no lower than the least served active tenant ("counter
/// lift"): idle time earns no credit.
///
/// Hence, while two tenants both have requests waiting, the service that they get differs by at
/// most a constant, whatever either of them sends.
class FairShare {
 public:
  static constexpr double kOutputTokenWeight = 2;  ///< as in the paper

  /// One more request of the tenant waits or runs; or one fewer.
  void enter(std::uint32_t tenant);
  void leave(std::uint32_t tenant);
  /// Tokens computed for a request; prefix-cache hits are free.
  void serve(std::uint32_t tenant, std::int32_t num_prompt_tokens, std::int32_t num_output_tokens);

  [[nodiscard]] double served(std::uint32_t tenant) const;

 private:
  struct Tenant {
    double served = 0;
    std::int32_t num_requests = 0;
  };
  std::unordered_map<std::uint32_t, Tenant> tenants_;
  double last_left_ = 0;  ///< the counter of the last active tenant that became idle
};

}  // namespace troupe
