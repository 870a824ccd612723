#pragma once
// How many tokens are worth guessing.

#include <algorithm>
#include <cstdint>

namespace troupe {

/// Of one request: doubles when all guesses came true, halves when none did, as TCP's window does.
/// Where even one is not worth it, there is none for a while, twice as long each time: a text that
/// cannot be guessed pays for one guess in kLongestPause steps.
class DraftLimit {
 public:
  static constexpr std::int32_t kLongestPause = 64;

  /// Records how many of a step's drafts were accepted.
  void observe(std::int32_t num_drafted, std::int32_t num_accepted) noexcept {
    if (num_drafted == 0) return;
    if (num_accepted == num_drafted) {
      limit_ = std::min(2 * std::max(limit_, num_drafted), kMost);
      pause_ = 0;
    } else if (num_accepted > 0) {
      limit_ = std::max(1, num_accepted + 1);
      pause_ = 0;
    } else if (limit_ > 1) {
      limit_ = std::min(limit_, num_drafted) / 2;
    }
    if (num_accepted > 0 || limit_ > 1) return;
    limit_ = 1;
    pause_ = std::min(std::max(1, 2 * pause_), kLongestPause);
    num_left_ = pause_;
  }
  /// The number of drafts for the next step, of at most this many.
  [[nodiscard]] std::int32_t next(std::int32_t most) noexcept {
    if (num_left_ == 0) return std::min(limit_, most);
    --num_left_;
    return 0;
  }

 private:
  static constexpr std::int32_t kMost = 128;
  std::int32_t limit_ = 4;
  std::int32_t pause_ = 0;     ///< the last one's length
  std::int32_t num_left_ = 0;  ///< steps of it
};

}  // namespace troupe
