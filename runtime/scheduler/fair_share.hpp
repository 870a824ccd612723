#pragma once
// Who has been served least.

#include <cstdint>
#include <unordered_map>

namespace troupe {

/// The Virtual Token Counter (VTC: Sheng et al., "Fairness in Serving Large Language Models", arXiv
/// 2401.00588): fair queueing whose virtual time is the work done for each tenant. Owns a counter
/// per tenant, in prompt tokens computed; an output token weighs kOutputTokenWeight of them. A
/// tenant that had nothing to do starts again no lower than the least served of the others
/// ("counter lift"): who pauses saves nothing up.
///
/// Hence, as long as two tenants both have requests waiting, what they are served differs by no
/// more than a constant, whatever either of them sends.
class FairShare {
 public:
  static constexpr double kOutputTokenWeight = 2;  ///< as the paper has it

  /// One more request of the tenant waits or runs; one fewer does.
  void enter(std::uint32_t tenant);
  void leave(std::uint32_t tenant);
  /// Tokens that were computed for a request; those found in the prefix cache cost nothing.
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
