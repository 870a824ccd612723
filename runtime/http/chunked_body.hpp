#pragma once
// The chunked transfer coding (RFC 9112, section 7.1).

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

/// Decodes the chunks of one body. Anything that a lenient parser might interpret differently is
/// malformed: lines that end with a bare LF, spaces around a size, control characters. Sizes,
/// extensions and trailers are counted and discarded.
class ChunkedBody {
 public:
  enum class State : std::uint8_t { kOpen, kDone, kMalformed, kTooLarge };

  /// `max_body_bytes` limits the data and, plus 4 KiB, separately the chunk framing.
  explicit ChunkedBody(std::uint64_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}

  /// Appends the data to `body`; returns how many bytes belong to this body: all of them until
  /// state() is kDone. Pre: state() is kOpen.
  [[nodiscard]] std::size_t feed(std::string_view bytes, std::string& body);
  [[nodiscard]] State state() const noexcept { return state_; }

 private:
  enum class Place : std::uint8_t {
    kSize,
    kBeforeExtension,  ///< spaces before its semicolon
    kExtension,
    kSizeEnd,  ///< LF
    kData,
    kDataCr,
    kDataLf,
    kTrailer,  ///< at the start of a line
    kTrailerName,
    kTrailerValue,
    kTrailerEnd,  ///< LF
    kLastLf
  };

  [[nodiscard]] Place after(char c);
  [[nodiscard]] Place after_size_byte(char c);
  Place malformed() noexcept {
    state_ = State::kMalformed;
    return place_;
  }

  std::uint64_t max_body_bytes_;
  State state_ = State::kOpen;
  Place place_ = Place::kSize;
  std::uint64_t chunk_left_ = 0;  ///< remaining data; the size while it is parsed
  int num_digits_ = 0;            ///< of the size
  std::uint64_t num_data_bytes_ = 0;
  std::uint64_t num_framing_bytes_ = 0;
};

}  // namespace troupe
