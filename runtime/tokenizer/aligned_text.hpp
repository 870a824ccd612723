#pragma once
// A text that is rewritten while each of its bytes keeps a reference to its origin in the input.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/ids.hpp"
#include "runtime/base/work_budget.hpp"

namespace troupe {

/// Half-open range of bytes.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  [[nodiscard]] bool empty() const noexcept { return begin == end; }
  [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

/// A segment of the input on its way through normalizers and pre-tokenizers.
///
/// Views the original until it is rewritten, then owns the new text. With origin tracking it
/// stores, for each byte of the text, the range of the input it came from; before the first rewrite
/// that is its character.
class AlignedText {
 public:
  /// The size limit of a rewritten text of `num_bytes`. The largest legitimate growth, long
  /// decompositions spelled byte by byte, is about 40-fold.
  [[nodiscard]] static constexpr std::size_t max_rewritten_bytes(std::size_t num_bytes) {
    return 64 * num_bytes + (std::size_t{1} << 16);
  }

  /// `original` is at byte `shift` of the input, and must outlive this object.
  AlignedText(std::string_view original, std::size_t shift, bool tracks_origins)
      : original_(original),
        shift_(shift),
        tracks_origins_(tracks_origins),
        max_bytes_(max_rewritten_bytes(original.size())) {}

  [[nodiscard]] std::string_view view() const noexcept {
    return rewritten_ ? std::string_view(text_) : original_;
  }
  [[nodiscard]] std::string_view view(ByteRange range) const noexcept {
    return view().substr(range.begin, range.size());
  }
  /// The range of the input that `range` of this text came from. Pre: `range` is not empty; origins
  /// are tracked, or nothing was rewritten.
  [[nodiscard]] ByteRange origin(ByteRange range) const;
  /// The part of this text at `range`; the original must outlive it, too.
  [[nodiscard]] AlignedText slice(ByteRange range) const;

 private:
  friend class TextRewriter;
  [[nodiscard]] ByteRange origin_of_byte(std::size_t i) const;

  std::string_view original_;
  std::size_t shift_;
  bool tracks_origins_;
  std::size_t max_bytes_;  ///< limit of any rewritten form
  bool rewritten_ = false;
  std::string text_;
  std::vector<ByteRange> origins_;
};

/// One pass over an AlignedText that produces its next form. A cursor moves over the old text;
/// written text takes its origin from the cursor. Nothing changes until finish(). Output is charged
/// to `work`; if the text grows too much, WorkStopped is thrown.
class TextRewriter {
 public:
  TextRewriter(AlignedText& text, WorkBudget& work)
      : target_(text), work_(work), old_(text.view()) {}

  [[nodiscard]] std::size_t cursor() const noexcept { return cursor_; }
  [[nodiscard]] std::size_t written() const noexcept { return text_.size(); }
  /// Copies the next bytes as they are.
  void keep(std::size_t num_bytes);
  /// Drops the next bytes.
  void skip(std::size_t num_bytes) {
    work_.charge();
    cursor_ += num_bytes;
  }
  /// Writes `utf8` with the origin of the byte at the cursor, then moves over `num_old_bytes`.
  void replace(std::string_view utf8, std::size_t num_old_bytes);
  /// Writes `utf8` with the origin of the byte before the cursor.
  void insert(std::string_view utf8);
  /// Writes `utf8` with the origin of the byte at the cursor, and stays there.
  void insert_before(std::string_view utf8) { replace(utf8, 0); }
  void finish();

 private:
  void charge(std::size_t num_bytes);

  AlignedText& target_;
  WorkBudget& work_;
  std::string_view old_;
  std::size_t cursor_ = 0;
  std::string text_;
  std::vector<ByteRange> origins_;
};

/// A text split into pieces. The pieces are in order and do not overlap; text between them is
/// dropped.
struct PreTokenizedText {
  AlignedText text;
  std::vector<ByteRange> pieces;  ///< none is empty
};

}  // namespace troupe
