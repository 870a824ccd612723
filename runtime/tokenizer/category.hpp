#pragma once
// General categories as in the reference tokenizers.

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

namespace troupe::unicode {

/// Unicode 16, as in the regular expressions of `tokenizers` 0.23: utf8proc's tables plus the rows
/// that it lacks.
[[nodiscard]] inline utf8proc_category_t category(char32_t c) noexcept {
  struct Row {
    char32_t first;
    char32_t last;
    utf8proc_category_t category;
  };
  static constexpr Row kNewer[] = {
#include "runtime/tokenizer/newer_categories.inc"
  };
  const Row* row = std::lower_bound(std::begin(kNewer), std::end(kNewer), c,
                                    [](const Row& r, char32_t at) { return r.last < at; });
  if (row != std::end(kNewer) && row->first <= c) return row->category;
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

}  // namespace troupe::unicode
