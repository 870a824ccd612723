#pragma once
// The client's position in a stream: the ids of its events, for resumable streams.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

/// The position in one sample. A sample's text is a function of its tokens, so both counts are the
/// same whenever the stream is run again, however its tokens are grouped into events.
struct SamplePosition {
  std::size_t num_tokens = 0;
  std::size_t num_bytes = 0;  ///< of text
  bool begun = false;         ///< its first event was received
  bool finished = false;      ///< its last event was received
  bool operator==(const SamplePosition&) const = default;

  /// Whether a client at position `other` has all of this.
  [[nodiscard]] bool is_within(const SamplePosition& other) const noexcept {
    return num_tokens <= other.num_tokens && num_bytes <= other.num_bytes && begun <= other.begun &&
           finished <= other.finished;
  }
};

struct StreamPosition {
  std::vector<SamplePosition> samples;  ///< those of the first prompt, then those of the second ...
  bool has_usage = false;               ///< the event after all samples was received
  bool operator==(const StreamPosition&) const = default;
};

/// "12.57_-_40.131e": tokens and bytes of the first sample, nothing of the second, all of the
/// third; a trailing "u": also the usage.
[[nodiscard]] std::string to_text(const StreamPosition& position);

/// For a stream of `num_samples` samples; an empty text is the start. Errors: kInvalidArgument,
/// param starting_after.
[[nodiscard]] Result<StreamPosition> parse_stream_position(std::string_view text,
                                                           std::size_t num_samples);

}  // namespace troupe
