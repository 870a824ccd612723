#pragma once
// The tables of every backend that runs here, for the tests that all of them pass.

#include <string_view>
#include <vector>

#include "kernels/device_table.hpp"
#include "tests/kernels/kernel_testing.hpp"
#include "tests/kernels/thread_orders.hpp"
#include "tests/support/sanitized.hpp"

namespace troupe::testing {

#if defined(TROUPE_CUDA_EMULATION)
/// An operation of the emulated device in an order of threads.
template <ThreadOrder order, auto operation>
struct InOrder;
template <ThreadOrder order, class Result, class... Parameters,
          Result (*OpTable::*operation)(Parameters...) noexcept>
struct InOrder<order, operation> {
  static Result call(Parameters... parameters) noexcept {
    const InThreadOrder in_order(order);
    return (cuda_emulated_device()->ops->*operation)(parameters...);
  }
};

template <ThreadOrder order>
const OpTable& emulated_table(const char* name) {
#define TROUPE_IN_ORDER(result, operation, parameters) \
  .operation = InOrder<order, &OpTable::operation>::call,
  // clang-format off
  static const OpTable table = {.name = name, TROUPE_OPERATIONS(TROUPE_IN_ORDER)};
  // clang-format on
#undef TROUPE_IN_ORDER
  return table;
}
#endif

/// all_tables(), and the CUDA kernels, emulated, once for each order of threads; all memory is the
/// host's.
inline const std::vector<const OpTable*>& all_backends() {
  static const std::vector<const OpTable*> tables = [] {
    std::vector<const OpTable*> found = all_tables();
#if defined(TROUPE_CUDA_EMULATION)
    found.push_back(&emulated_table<ThreadOrder::kForward>("cuda, forward"));
    if (!kSanitized) {  // an order shows in results, for which the release build is enough
      found.push_back(&emulated_table<ThreadOrder::kReversed>("cuda, reversed"));
      found.push_back(&emulated_table<ThreadOrder::kRandom>("cuda, random"));
    }
#endif
    return found;
  }();
  return tables;
}

/// Emulated, and slow.
inline bool is_emulated(const OpTable& ops) {
  return std::string_view(ops.name).starts_with("cuda");
}

}  // namespace troupe::testing
