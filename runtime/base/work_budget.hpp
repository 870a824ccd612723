#pragma once
// Bounds long work for one request (rendering its template, encoding its text): the work is
// counted, and stopped when the client disconnects, the deadline passes or the count is exhausted.

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

/// External limits of a request's work. Copies share the flag.
struct WorkLimits {
  std::shared_ptr<const std::atomic<bool>> cancelled;  ///< set once, by any thread; may be null
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

/// Thrown by WorkBudget, and caught in the component that created the budget, which returns error()
/// of it.
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

/// Counts the work of one thread. A unit is about one step of a loop, or 16 bytes of bulk reading
/// or writing; flag and clock are checked every kUnitsPerLook units, about once per millisecond.
class WorkBudget {
 public:
  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
  static constexpr std::uint64_t kUnitsPerLook = std::uint64_t{1} << 16;

  explicit WorkBudget(WorkLimits limits = {}, std::uint64_t max_units = kUnlimited)
      : limits_(std::move(limits)), left_(max_units) {
    begin_stretch();
  }

  /// Called before the work is done. Throws WorkStopped.
  void charge(std::uint64_t units = 1) {
    if (units <= stretch_left_) {
      stretch_left_ -= units;
    } else {
      charge_and_look(units);
    }
  }
  /// For `bytes` of bulk reading or writing.
  void charge_bytes(std::size_t bytes) { charge(1 + bytes / 16); }
  /// For work of unpredictable cost: checks flag and clock.
  void look();

  [[nodiscard]] std::uint64_t units_left() const noexcept { return left_ + stretch_left_; }

 private:
  void charge_and_look(std::uint64_t units);
  void begin_stretch();

  WorkLimits limits_;
  std::uint64_t left_;              ///< beyond the current stretch
  std::uint64_t stretch_left_ = 0;  ///< until the next check
};

}  // namespace troupe
