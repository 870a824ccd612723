#include "runtime/base/json_depth.hpp"

namespace troupe {
namespace {

/// Calls f(character) for each character outside of strings, until it returns false.
template <class Function>
void for_each_outside_texts(std::string_view json, Function&& f) {
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') {
      in_string = !in_string;
    } else if (in_string) {
      if (c == '\\') ++i;
    } else if (!f(c)) {
      return;
    }
  }
}

}  // namespace

bool is_nested_deeper(std::string_view json, std::size_t max_depth) noexcept {
  std::size_t depth = 0;
  for_each_outside_texts(json, [&](char c) {
    if (c == '[' || c == '{') {
      ++depth;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
    return depth <= max_depth;
  });
  return depth > max_depth;
}

std::size_t count_json_values(std::string_view json) noexcept {
  std::size_t count = 1;
  for_each_outside_texts(json, [&](char c) {
    count += c == ',' || c == '[' || c == '{';
    return true;
  });
  return count;
}

}  // namespace troupe
