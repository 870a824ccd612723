#pragma once
// The filters by topic, joined in filters.cpp.

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/chat/jinja/filters.hpp"

namespace troupe::jinja {

using FilterEntry = std::pair<std::string_view, FilterFunction>;

[[nodiscard]] std::span<const FilterEntry> text_filters();
[[nodiscard]] std::span<const FilterEntry> sequence_filters();
[[nodiscard]] std::span<const FilterEntry> value_filters();

/// Follows the path in "message.role" over attributes and items: Jinja's make_attrgetter.
[[nodiscard]] Value get_path(const Value& value, const Value& path, Runtime& runtime);

}  // namespace troupe::jinja
