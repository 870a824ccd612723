#pragma once
// Which random cases a property test has, and how many.

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string_view>

namespace troupe::testing {

/// The first seed: 1, so that a run says of a change what the run before it has said. The variable
/// TROUPE_PROPERTY_SEED has another one, for running one again, or "random" (`make test-long`).
inline std::uint32_t property_seed() {
  const char* const text = std::getenv("TROUPE_PROPERTY_SEED");
  if (text == nullptr) return 1;
  if (std::string_view(text) == "random") return std::random_device{}();
  return static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
}

/// A number of cases, for a thorough run.
inline std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace troupe::testing
