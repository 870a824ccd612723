#include "runtime/base/work_budget.hpp"

#include <algorithm>
#include <string>

namespace troupe {

Error WorkStopped::error(std::string_view work) const {
  switch (reason_) {
    case Reason::kCancelled:
      return {ErrorCode::kAborted, std::string(work) + " was cancelled", {}};
    case Reason::kDeadline:
      return {ErrorCode::kTimeout, std::string(work) + " took longer than its time limit", {}};
    case Reason::kTooMuch:
      break;
  }
  return {
      ErrorCode::kInvalidArgument, std::string(work) + " needs more steps than are allowed", {}};
}

void WorkBudget::look() {
  if (limits_.cancelled && limits_.cancelled->load(std::memory_order_relaxed)) {
    throw WorkStopped(WorkStopped::Reason::kCancelled);
  }
  if (limits_.deadline && std::chrono::steady_clock::now() >= *limits_.deadline) {
    throw WorkStopped(WorkStopped::Reason::kDeadline);
  }
}

void WorkBudget::charge_and_look(std::uint64_t units) {
  look();
  units -= stretch_left_;
  stretch_left_ = 0;
  if (units > left_) {
    left_ = 0;
    throw WorkStopped(WorkStopped::Reason::kTooMuch);
  }
  left_ -= units;
  begin_stretch();
}

void WorkBudget::begin_stretch() {
  stretch_left_ = std::min(left_, kUnitsPerLook);
  left_ -= stretch_left_;
}

}  // namespace troupe
