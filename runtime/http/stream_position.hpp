#pragma once
// How far a client has got in a stream: the ids of its events, when streams can be resumed.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

/// What a client has of one sample. A sample's text is a function of its tokens, so both counts are
/// the same whenever the stream is run again, however its tokens are spread over events.
struct SamplePosition {
  std::size_t num_tokens = 0;
  std::size_t num_bytes = 0;  ///< of text
  bool begun = false;         ///< it has had its first event
  bool finished = false;      ///< and its last
  bool operator==(const SamplePosition&) const = default;

  /// Who has got as far as `other` has all of this.
  [[nodiscard]] bool is_within(const SamplePosition& other) const noexcept {
    return num_tokens <= other.num_tokens && num_bytes <= other.num_bytes && begun <= other.begun &&
           finished <= other.finished;
  }
};

struct StreamPosition {
  std::vector<SamplePosition> samples;  ///< those of the first prompt, then those of the second ...
  bool has_usage = false;               ///< the event behind them all
  bool operator==(const StreamPosition&) const = default;
};

/// "12.57_-_40.131e": tokens and bytes of the first sample, nothing of the second, all of the
/// third; a "u" behind it: also the usage.
[[nodiscard]] std::string to_text(const StreamPosition& position);

/// Of a stream of so many samples; an empty text is its beginning. Errors: kInvalidArgument, param
/// starting_after.
[[nodiscard]] Result<StreamPosition> parse_stream_position(std::string_view text,
                                                           std::size_t num_samples);

}  // namespace troupe
