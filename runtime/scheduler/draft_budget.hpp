#pragma once
// How many tokens of a request are worth guessing, by the load and by how many guesses come true.

#include <algorithm>
#include <cstdint>

namespace troupe {

/// A guess costs a row of the next step and gains a token if it comes true, and all before it. In a
/// small step a row costs next to nothing, as the weights are read anyway; in a large one as much
/// as a token. The time of a step is taken for a + b * rows: b as measured in steps that are large,
/// a in small ones.
///
/// Owned by the Scheduler, which asks it for each step's SchedulerOutput::num_drafts_to_make.
/// Tokens do not depend on what it answers.
class DraftBudget {
 public:
  /// While no guess is worth its row, one in so many steps is made all the same: texts change.
  static constexpr std::int32_t kProbeSteps = 64;
  /// From this number of rows on, a step counts as large.
  static constexpr std::int32_t kLargeStep = 64;

  void on_planned(double now) noexcept {
    if (num_open_++ == 0) since_ = now;
  }
  /// A step is done that computed so many tokens, guesses included. Steps that overlap are as long
  /// as the time between their ends.
  void on_done(double now, std::int32_t num_rows) noexcept {
    const double seconds = now - since_;
    since_ = now;
    num_open_ = std::max(num_open_ - 1, 0);
    if (num_rows <= 0 || seconds <= 0) return;
    if (num_rows >= kLargeStep && step_s_ > 0) {
      average(row_s_, std::max(seconds - step_s_, seconds / 2) / num_rows);
    } else if (num_rows >= kLargeStep) {
      average(row_s_, seconds / num_rows);
    } else {
      average(step_s_, std::max(seconds - row_s_ * num_rows, seconds / 2));
    }
  }
  void on_failed() noexcept { num_open_ = 0; }

  /// A request's guesses of a step: so many of them came true.
  void on_verified(std::int32_t num_drafts, std::int32_t num_accepted) noexcept {
    num_right_ = kMemory * num_right_ + num_accepted;
    num_wrong_ = kMemory * num_wrong_ + (num_accepted < num_drafts ? 1 : 0);
  }

  /// For each of the requests of a step, at most so many.
  [[nodiscard]] std::int32_t next(std::int32_t num_requests, std::int32_t most) noexcept {
    const double cost = row_cost(num_requests);
    const double likelihood = (num_right_ + 1) / (num_right_ + num_wrong_ + 1);
    std::int32_t count = 0;
    for (double all = likelihood; count < most && all >= cost; all *= likelihood) ++count;
    if (count > 0) num_skipped_ = 0;
    if (count > 0 || ++num_skipped_ < kProbeSteps) return count;
    num_skipped_ = 0;
    return std::min(1, most);
  }

 private:
  /// Of a further row, in units of what a token costs in a step of so many requests.
  [[nodiscard]] double row_cost(std::int32_t num_requests) const noexcept {
    const double rows = std::max(num_requests, 1);
    // Until both are known, as on a CPU without matrix unit.
    const double row = step_s_ > 0 && row_s_ > 0 ? row_s_ / step_s_ : kUsualRow;
    return row * rows / (1 + row * rows);
  }
  static void average(double& value, double sample) noexcept {
    value = value == 0 ? sample : value + (sample - value) / 8;
  }

  static constexpr double kUsualRow = 1.0 / 16;
  static constexpr double kMemory = 0.98;  ///< of what was verified before, per request and step
  double since_ = 0;
  std::int32_t num_open_ = 0;
  double step_s_ = 0;  ///< a; 0: not known
  double row_s_ = 0;   ///< b; 0: not known
  double num_right_ = 0;
  double num_wrong_ = 0;
  std::int32_t num_skipped_ = 0;  ///< steps without guesses, since there were some
};

}  // namespace troupe
