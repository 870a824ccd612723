#include "runtime/tokenizer/aligned_text.hpp"

#include "runtime/base/check.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace troupe {

ByteRange AlignedText::origin_of_byte(std::size_t i) const {
  if (rewritten_) {
    CHECK(tracks_origins_ && i < origins_.size(), i, origins_.size());
    return origins_[i];
  }
  std::size_t begin = i;
  while (begin > 0 && unicode::is_continuation(static_cast<unsigned char>(original_[begin]))) {
    --begin;
  }
  const std::size_t length = unicode::char_bytes(static_cast<unsigned char>(original_[begin]));
  return {shift_ + begin, shift_ + begin + length};
}

ByteRange AlignedText::origin(ByteRange range) const {
  return {origin_of_byte(range.begin).begin, origin_of_byte(range.end - 1).end};
}

AlignedText AlignedText::slice(ByteRange range) const {
  if (!rewritten_) {
    return {original_.substr(range.begin, range.size()), shift_ + range.begin, tracks_origins_};
  }
  AlignedText part({}, range.empty() || !tracks_origins_ ? shift_ : origin(range).begin,
                   tracks_origins_);
  part.rewritten_ = true;
  part.max_bytes_ = max_bytes_;
  part.text_ = view(range);
  if (tracks_origins_) {
    part.origins_.assign(origins_.begin() + static_cast<std::ptrdiff_t>(range.begin),
                         origins_.begin() + static_cast<std::ptrdiff_t>(range.end));
  }
  return part;
}

void TextRewriter::charge(std::size_t num_bytes) {
  work_.charge(1 + num_bytes / (target_.tracks_origins_ ? 2 : 16));
  if (text_.size() + num_bytes > target_.max_bytes_) {
    throw WorkStopped(WorkStopped::Reason::kTooMuch);
  }
}

void TextRewriter::keep(std::size_t num_bytes) {
  charge(num_bytes);
  text_.append(old_, cursor_, num_bytes);
  if (target_.tracks_origins_) {
    for (std::size_t i = cursor_; i < cursor_ + num_bytes; ++i) {
      origins_.push_back(target_.origin_of_byte(i));
    }
  }
  cursor_ += num_bytes;
}

void TextRewriter::replace(std::string_view utf8, std::size_t num_old_bytes) {
  charge(utf8.size());
  text_.append(utf8);
  if (target_.tracks_origins_) {
    const ByteRange origin = cursor_ < old_.size() ? target_.origin_of_byte(cursor_)
                                                   : ByteRange{target_.shift_, target_.shift_};
    origins_.insert(origins_.end(), utf8.size(), origin);
  }
  cursor_ += num_old_bytes;
}

void TextRewriter::insert(std::string_view utf8) {
  charge(utf8.size());
  text_.append(utf8);
  if (target_.tracks_origins_) {
    const ByteRange origin = cursor_ > 0 ? target_.origin_of_byte(cursor_ - 1)
                                         : ByteRange{target_.shift_, target_.shift_};
    origins_.insert(origins_.end(), utf8.size(), origin);
  }
}

void TextRewriter::finish() {
  target_.text_ = std::move(text_);
  target_.origins_ = std::move(origins_);
  target_.rewritten_ = true;
}

}  // namespace troupe
