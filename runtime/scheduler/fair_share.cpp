#include "runtime/scheduler/fair_share.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe {

void FairShare::enter(std::uint32_t id) {
  Tenant& tenant = tenants_[id];
  if (tenant.num_requests++ > 0) return;
  double least = last_left_;
  bool found = false;
  for (const auto& [other, state] : tenants_) {
    if (other == id || state.num_requests == 0) continue;
    least = found ? std::min(least, state.served) : state.served;
    found = true;
  }
  tenant.served = std::max(tenant.served, least);
}

void FairShare::leave(std::uint32_t id) {
  Tenant& tenant = tenants_.at(id);
  CHECK(tenant.num_requests > 0, id);
  if (--tenant.num_requests == 0) last_left_ = tenant.served;
}

void FairShare::serve(std::uint32_t id, std::int32_t num_prompt_tokens,
                      std::int32_t num_output_tokens) {
  tenants_.at(id).served += num_prompt_tokens + kOutputTokenWeight * num_output_tokens;
}

double FairShare::served(std::uint32_t id) const {
  const auto tenant = tenants_.find(id);
  return tenant == tenants_.end() ? 0 : tenant->second.served;
}

}  // namespace troupe
