#pragma once
// The orders in which the emulated device's threads run (kernels/cuda_emulation).

#include <ostream>

#include "kernels/cuda_emulation/thread_order.hpp"

namespace troupe::cuda_emulation {

inline std::ostream& operator<<(std::ostream& out, ThreadOrder order) {
  return out << (order == ThreadOrder::kForward    ? "forward"
                 : order == ThreadOrder::kReversed ? "reversed"
                                                   : "random");
}

}  // namespace troupe::cuda_emulation

namespace troupe::testing {

using cuda_emulation::ThreadOrder;

inline constexpr ThreadOrder kOtherOrders[] = {ThreadOrder::kReversed, ThreadOrder::kRandom};

/// While it exists, launches of this thread run their threads in this order.
class InThreadOrder {
 public:
  explicit InThreadOrder(ThreadOrder order) { cuda_emulation::set_thread_order(order); }
  ~InThreadOrder() { cuda_emulation::set_thread_order(ThreadOrder::kForward); }
  InThreadOrder(const InThreadOrder&) = delete;
  InThreadOrder& operator=(const InThreadOrder&) = delete;
};

}  // namespace troupe::testing
