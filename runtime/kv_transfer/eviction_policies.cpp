#include <array>

#include "runtime/kv_transfer/eviction_policy.hpp"

namespace troupe {
namespace {

struct PolicyKind {
  const char* name;
  std::unique_ptr<EvictionPolicy> (*make)();
};
constexpr std::array kPolicies = {PolicyKind{"lru", make_lru_policy},
                                  PolicyKind{"arc", make_arc_policy}};

}  // namespace

Result<std::unique_ptr<EvictionPolicy>> make_eviction_policy(const std::string& name) {
  std::string names;
  for (const PolicyKind& kind : kPolicies) {
    if (name == kind.name) return kind.make();
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
  }
  return invalid_argument("'" + name.substr(0, 32) + "' is not one of " + names);
}

}  // namespace troupe
