#pragma once
// How many tokens of a request are worth guessing, by the load, by how many guesses come true, and
// by what a draft model takes to make them.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "messages/model_runner_output.hpp"

namespace troupe {

/// A guess costs a row of the next step, and the pass of a draft model that makes it, and gains a
/// token if it comes true, and all before it. In a small step a row costs next to nothing, as the
/// weights are read anyway; in a large one as much as a token. The time of a step, and that of a
/// pass, is taken for a + b * rows: b as measured where rows are many, a where they are few.
///
/// So much for the next guess. Whether guesses have been worth their cost is in the balance: the
/// time that they have gained less the time that they have cost, and a small share of all time on
/// top. There a step is compared with steps of as many requests that had no guesses, as measured:
/// for look-ups a few are made from time to time. While the balance is too far below 0, nothing is
/// guessed, and a draft model computes nothing; so in the long run guesses cost at most that share,
/// whatever the text and the draft model.
///
/// What it has skipped a draft model computes when it guesses again. A head cannot, and guesses for
/// requests that begin afterwards. So while no guess is worth its cost, it stays ready as long as
/// the balance allows it: that may be a part of the text, and the balance may be high.
///
/// Owned by the Scheduler, which asks it for each step's SchedulerOutput::num_drafts_to_make.
/// Tokens do not depend on what it answers.
class DraftBudget {
 public:
  /// While no guess is worth its cost, one in so many steps is made at most all the same, if the
  /// share of the time since then covers its cost: texts change.
  static constexpr std::int32_t kProbeSteps = 64;
  /// From this number of rows on, a step counts as large.
  static constexpr std::int32_t kLargeStep = 64;
  /// Of all time, that guesses may cost.
  static constexpr double kShare = 0.01;
  /// The balance in steps with which guesses end that have been worth their cost.
  static constexpr double kMaxDebt = 32;
  /// Of so many steps with guesses kPlainTries are made without, to compare with; at most, as such
  /// a step must have no prompts either.
  static constexpr std::int32_t kPlainSteps = 128;
  static constexpr std::int32_t kPlainTries = 3;

  /// A step that is being planned.
  struct Step {
    std::int32_t num_requests = 0;
    std::int32_t num_tokens = 0;  ///< of all requests
    std::int32_t max_drafts = 0;  ///< for each request; 0: none can get any
    bool computes = false;        ///< drafts come from a draft model, and not from a look-up
    bool catches_up = true;       ///< such a model can compute later what it has skipped
  };
  struct Plan {
    std::int32_t num_drafts = 0;  ///< for each request, at most
    std::int32_t max_rows = 0;    ///< SchedulerOutput::max_draft_rows
  };

  void on_planned(double now) noexcept {
    if (num_open_++ == 0) since_ = now;
  }
  /// A step is done that computed so many tokens, guesses included. Steps that overlap are as long
  /// as the time between their ends.
  void on_done(double now, std::int32_t num_requests, std::int32_t num_rows,
               std::int32_t num_drafts = 0, const DraftReport& drafting = {}) noexcept {
    const double all = now - since_;
    since_ = now;
    num_open_ = std::max(num_open_ - 1, 0);
    if (has_verified_) {
      num_right_ *= kMemory;
      num_wrong_ *= kMemory;
      has_verified_ = false;
    }
    num_requests_ = std::max(num_requests, 1);
    least_behind_ = drafting.least_behind;
    if (num_rows <= 0 || all <= 0) return;
    const double draft_s = static_cast<double>(drafting.us) * 1e-6;
    const double passes = drafting.num_passes;
    const double draft_rows = drafting.num_rows;
    if (passes > 0 && draft_rows >= kLargeStep * passes) {
      average(draft_row_s_, std::max(draft_s - draft_pass_s_ * passes, draft_s / 2) / draft_rows);
    } else if (passes > 0) {
      average(draft_pass_s_, std::max(draft_s - draft_row_s_ * draft_rows, draft_s / 2) / passes);
    }
    const double seconds = std::max(all - draft_s, all / 16);
    if (num_rows >= kLargeStep && step_s_ > 0) {
      average(row_s_, std::max(seconds - step_s_, seconds / 2) / num_rows);
    } else if (num_rows >= kLargeStep) {
      average(row_s_, seconds / num_rows);
    } else {
      average(step_s_, std::max(seconds - row_s_ * num_rows, seconds / 2));
    }
    const bool has_drafts = num_drafts > 0 || passes > 0;
    double& plain = plain_s_[size_class(num_requests_)];
    double cost = draft_s + row_cost(num_requests_) * token_s() * num_drafts;
    if (num_rows == num_requests + num_drafts) {  // no prompts
      if (!has_drafts) {
        average(plain, plain > 0 ? std::min(all, 2 * plain) : all);
        num_since_plain_ = 0;
      } else if (plain > 0) {
        cost = all - plain;
      }
    }
    add_to_balance(kShare * all - (has_drafts ? cost : 0));
    probe_credit_ = std::min(probe_credit_ + kShare * all, kMaxDebt * plain_step_s());
  }
  void on_failed() noexcept { num_open_ = 0; }

  /// A request's guesses of the step that was done last: so many of them came true.
  void on_verified(std::int32_t num_drafts, std::int32_t num_accepted) noexcept {
    num_right_ += num_accepted;
    num_wrong_ += num_accepted < num_drafts ? 1 : 0;
    has_verified_ = true;
    add_to_balance(token_s() * num_accepted);
  }

  [[nodiscard]] Plan next(const Step& step) noexcept {
    const double cost =
        kMargin * (row_cost(step.num_requests) + (step.computes ? pass_cost(step) : 0));
    const double likelihood = (num_right_ + kPrior) / (num_right_ + num_wrong_ + kPrior);
    std::int32_t count = 0;
    for (double all = likelihood; count < step.max_drafts && all >= cost; all *= likelihood)
      ++count;
    const bool had_debt = has_debt_;
    has_debt_ = balance_ < (had_debt ? 0 : -kMaxDebt * plain_step_s());
    if (had_debt && !has_debt_) num_right_ = num_wrong_ = 0;  // of other texts
    // A draft model that skips a step may be unable to follow: its plain steps are those in debt.
    if (count > 0 && !has_debt_ && !step.computes && takes_plain_step(step.num_requests)) return {};
    if (count > 0 && !has_debt_) {
      num_skipped_ = 0;
      return {count,
              step.catches_up ? step.num_tokens + step.num_requests + kCatchUpRows : kAllRows};
    }
    const bool probes = ++num_skipped_ >= kProbeSteps && step.max_drafts > 0;
    if (step.computes && !step.catches_up) {
      if (has_debt_ || step.max_drafts == 0) return {};
      if (probes) num_skipped_ = 0;
      return {probes ? 1 : 0, kAllRows};
    }
    if (!probes) return {};
    if (!step.computes) {
      num_skipped_ = 0;
      return {1, 0};
    }
    // The request that lacks the fewest tokens, some more by now, and one pass for it.
    if (least_behind_ == std::numeric_limits<std::int32_t>::max()) return {};
    const std::int32_t num_rows = least_behind_ + kMostSince;
    const double probe_s = draft_pass_s_ + draft_row_s() * num_rows +
                           row_cost(step.num_requests) * step_s(step.num_requests);
    if (has_debt_ || probe_credit_ < probe_s) return {};
    probe_credit_ = 0;
    num_skipped_ = 0;
    return {1, num_rows};
  }

 private:
  /// Of a further row, in units of what a token costs in a step of so many requests.
  [[nodiscard]] double row_cost(std::int32_t num_requests) const noexcept {
    const double rows = std::max(num_requests, 1);
    // Until both are known, as on a CPU without matrix unit.
    const double row = step_s_ > 0 && row_s_ > 0 ? row_s_ / step_s_ : kUsualRow;
    return row * rows / (1 + row * rows);
  }
  /// Of a draft model's pass for all requests of the step, in units of the step without drafts.
  [[nodiscard]] double pass_cost(const Step& step) const noexcept {
    if (draft_pass_s_ > 0 && step_s_ > 0)
      return (draft_pass_s_ + draft_row_s() * step.num_requests) / step_s(step.num_requests);
    return draft_row_s_ > 0 && row_s_ > 0 ? draft_row_s_ / row_s_ : kUsualPass;
  }
  /// Steps of about as many requests take about as long for each.
  [[nodiscard]] static std::size_t size_class(std::int32_t num_requests) noexcept {
    const auto width = std::bit_width(static_cast<std::uint32_t>(std::max(num_requests, 1)));
    return std::min<std::size_t>(static_cast<std::size_t>(width) - 1, kSizeClasses - 1);
  }
  /// Whether the next step is one to compare with, though guesses seem worth their cost.
  [[nodiscard]] bool takes_plain_step(std::int32_t num_requests) noexcept {
    const std::size_t size = size_class(num_requests);
    if (plain_s_[size] == 0 && size != last_size_) num_since_plain_ = kPlainSteps;
    last_size_ = size;
    if (++num_since_plain_ <= kPlainSteps) return false;
    if (num_since_plain_ <= kPlainSteps + kPlainTries) return true;
    num_since_plain_ = 0;
    return false;
  }
  /// Of a step without drafts, of as many requests as the one that was done last.
  [[nodiscard]] double plain_step_s() const noexcept {
    const double plain = plain_s_[size_class(num_requests_)];
    return plain > 0 ? plain : step_s(num_requests_);
  }
  /// A token's share of it.
  [[nodiscard]] double token_s() const noexcept { return plain_step_s() / num_requests_; }
  /// Of a step without drafts by rows; 0: not known.
  [[nodiscard]] double step_s(std::int32_t num_requests) const noexcept {
    const double step = step_s_ > 0 ? step_s_ : row_s_ / kUsualRow;
    const double row = row_s_ > 0 ? row_s_ : step_s_ * kUsualRow;
    return step + row * num_requests;
  }
  [[nodiscard]] double draft_row_s() const noexcept {
    return draft_row_s_ > 0 ? draft_row_s_ : draft_pass_s_ * kUsualRow;
  }
  void add_to_balance(double seconds) noexcept {
    balance_ = std::min(balance_ + seconds, kMaxSaved * plain_step_s());
    balance_ = std::max(balance_, -2 * kMaxDebt * plain_step_s());
  }
  static void average(double& value, double sample) noexcept {
    value = value == 0 ? sample : value + (sample - value) / 8;
  }

  static constexpr std::int32_t kAllRows = std::numeric_limits<std::int32_t>::max();
  static constexpr double kUsualRow = 1.0 / 16;
  static constexpr double kUsualPass = 0.1;
  static constexpr double kMargin = 1.25;   ///< times are estimates
  static constexpr double kMemory = 0.9;    ///< of what was verified before, per step that verifies
  static constexpr double kPrior = 0.2;     ///< guesses that came true before the first one
  static constexpr double kMaxSaved = 256;  ///< steps
  static constexpr std::int32_t kCatchUpRows = 256;  ///< in a step, of those missed before
  static constexpr std::int32_t kMostSince = 8;      ///< tokens of a request in open steps
  double since_ = 0;
  std::int32_t num_open_ = 0;
  double step_s_ = 0;        ///< a of a step; 0: not known
  double row_s_ = 0;         ///< b of a step; likewise
  double draft_pass_s_ = 0;  ///< a of a draft model's pass; likewise
  double draft_row_s_ = 0;   ///< b of such a pass; likewise
  static constexpr std::size_t kSizeClasses = 12;
  std::array<double, kSizeClasses> plain_s_{};  ///< of steps without drafts and prompts; likewise
  std::size_t last_size_ = kSizeClasses;        ///< of the step that was planned last
  std::int32_t num_since_plain_ = 0;            ///< steps planned with drafts
  double balance_ = 0;
  bool has_debt_ = false;
  double probe_credit_ = 0;  ///< the share of the time since the last try
  double num_right_ = 0;
  double num_wrong_ = 0;
  std::int32_t num_requests_ = 1;  ///< of the step that was done last
  std::int32_t least_behind_ = 0;  ///< as it reported
  bool has_verified_ = false;      ///< since the last step was done
  std::int32_t num_skipped_ = 0;   ///< steps without guesses, since there were some
};

}  // namespace troupe
