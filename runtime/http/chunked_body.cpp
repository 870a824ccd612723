#include "runtime/http/chunked_body.hpp"

#include <algorithm>

#include "runtime/http/field_syntax.hpp"

namespace troupe {
namespace {

constexpr int kMaxSizeDigits = 16;
constexpr std::uint64_t kLeastFramingBytes = 4096;

int hex_value(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::size_t ChunkedBody::feed(std::string_view bytes, std::string& body) {
  std::size_t used = 0;
  while (state_ == State::kOpen && used < bytes.size()) {
    if (place_ == Place::kData) {
      const auto size =
          static_cast<std::size_t>(std::min<std::uint64_t>(chunk_left_, bytes.size() - used));
      body.append(bytes.substr(used, size));
      used += size;
      chunk_left_ -= size;
      if (chunk_left_ == 0) place_ = Place::kDataCr;
      continue;
    }
    if (++num_framing_bytes_ > max_body_bytes_ + kLeastFramingBytes) {
      state_ = State::kTooLarge;
      break;
    }
    place_ = after(bytes[used++]);
  }
  return used;
}

ChunkedBody::Place ChunkedBody::after_size_byte(char c) {
  if (const int digit = hex_value(c); digit >= 0) {
    if (++num_digits_ > kMaxSizeDigits) return malformed();
    chunk_left_ = chunk_left_ * 16 + static_cast<std::uint64_t>(digit);
    return Place::kSize;
  }
  if (num_digits_ == 0) return malformed();
  if (chunk_left_ > max_body_bytes_ - num_data_bytes_) {
    state_ = State::kTooLarge;
    return place_;
  }
  if (c == '\r') return Place::kSizeEnd;
  if (c == ';') return Place::kExtension;
  return c == ' ' || c == '\t' ? Place::kBeforeExtension : malformed();
}

ChunkedBody::Place ChunkedBody::after(char c) {
  switch (place_) {
    case Place::kSize:
      return after_size_byte(c);
    case Place::kBeforeExtension:
      if (c == ';') return Place::kExtension;
      return c == ' ' || c == '\t' ? place_ : malformed();
    case Place::kExtension:
      if (c == '\r') return Place::kSizeEnd;
      return is_field_char(c) ? place_ : malformed();
    case Place::kSizeEnd:
      if (c != '\n') return malformed();
      num_digits_ = 0;
      num_data_bytes_ += chunk_left_;
      return chunk_left_ == 0 ? Place::kTrailer : Place::kData;
    case Place::kData:
      break;  // consumed in feed
    case Place::kDataCr:
      return c == '\r' ? Place::kDataLf : malformed();
    case Place::kDataLf:
      return c == '\n' ? Place::kSize : malformed();
    case Place::kTrailer:
      if (c == '\r') return Place::kLastLf;
      return is_token_char(c) ? Place::kTrailerName : malformed();
    case Place::kTrailerName:
      if (c == ':') return Place::kTrailerValue;
      return is_token_char(c) ? place_ : malformed();
    case Place::kTrailerValue:
      if (c == '\r') return Place::kTrailerEnd;
      return is_field_char(c) ? place_ : malformed();
    case Place::kTrailerEnd:
      return c == '\n' ? Place::kTrailer : malformed();
    case Place::kLastLf:
      if (c != '\n') return malformed();
      state_ = State::kDone;
      return place_;
  }
  return malformed();
}

}  // namespace troupe
