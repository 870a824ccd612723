#pragma once
// Long work that one request causes (rendering its template, encoding its text): counted while it
// is done, and stopped when its client is gone, its time is up or the count runs out.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "messages/error.hpp"

namespace troupe {

/// What ends a request's work from outside. Copies share the flag.
struct WorkLimits {
  std::shared_ptr<const std::atomic<bool>> cancelled;  ///< anyone sets it, once; may be null
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

/// Thrown by WorkBudget. It ends in the component that made the budget, which returns error() of
/// it.
class WorkStopped : public std::exception {
 public:
  enum class Reason { kCancelled, kDeadline, kTooMuch };
  explicit WorkStopped(Reason reason) : reason_(reason) {}
  [[nodiscard]] const char* what() const noexcept override { return "work was stopped"; }
  [[nodiscard]] Reason reason() const noexcept { return reason_; }
  /// kAborted, kTimeout or kInvalidArgument. `work` names what was stopped: "encoding the prompt".
  [[nodiscard]] Error error(std::string_view work) const;

 private:
  Reason reason_;
};

/// Counts the work of one thread. A unit is about one step of a loop, or 16 bytes that are read or
/// written in bulk; flag and clock are looked at every kUnitsPerLook units, that is about each
/// millisecond.
class WorkBudget {
 public:
  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
  static constexpr std::uint64_t kUnitsPerLook = std::uint64_t{1} << 16;

  explicit WorkBudget(WorkLimits limits = {}, std::uint64_t max_units = kUnlimited)
      : limits_(std::move(limits)), left_(max_units) {
    begin_stretch();
  }

  /// Before the work is done. Throws WorkStopped.
  void charge(std::uint64_t units = 1) {
    if (units <= stretch_left_) {
      stretch_left_ -= units;
    } else {
      charge_and_look(units);
    }
  }
  /// For `bytes` that are read or written in bulk.
  void charge_bytes(std::size_t bytes) { charge(1 + bytes / 16); }
  /// For work whose cost only the clock can tell.
  void look();

  [[nodiscard]] std::uint64_t units_left() const noexcept { return left_ + stretch_left_; }

 private:
  void charge_and_look(std::uint64_t units);
  void begin_stretch();

  WorkLimits limits_;
  std::uint64_t left_;              ///< without the present stretch
  std::uint64_t stretch_left_ = 0;  ///< until the next look
};

}  // namespace troupe
