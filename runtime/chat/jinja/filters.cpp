#include "runtime/chat/jinja/filters.hpp"

#include <map>

#include "runtime/chat/jinja/filter_tables.hpp"

namespace troupe::jinja {

FilterFunction find_filter(std::string_view name) {
  static const std::map<std::string_view, FilterFunction> kFilters = [] {
    std::map<std::string_view, FilterFunction> all;
    for (const auto& entries : {text_filters(), sequence_filters(), value_filters()}) {
      all.insert(entries.begin(), entries.end());
    }
    return all;
  }();
  const auto found = kFilters.find(name);
  return found == kFilters.end() ? nullptr : found->second;
}

}  // namespace troupe::jinja
