#include "runtime/ec_transfer/encoder_loads.hpp"

#include <charconv>

namespace troupe {
namespace {

/// The number that the text begins with, with the space behind it.
template <class Number>
std::optional<Number> take_number(std::string_view& text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() + text.size() || *end != ' ') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return number;
}

}  // namespace

std::string pack_encoder_loads(const std::vector<EncoderLoad>& loads) {
  std::string text;
  for (const EncoderLoad& load : loads)
    text += std::to_string(load.num_rows) + (load.is_fetch ? " 1 " : " 0 ") +
            std::to_string(load.identifier.size()) + ' ' + load.identifier;
  return text;
}

std::optional<std::vector<EncoderLoad>> unpack_encoder_loads(std::string_view text) {
  std::vector<EncoderLoad> loads;
  while (!text.empty()) {
    const auto num_rows = take_number<std::int32_t>(text);
    const auto is_fetch = num_rows ? take_number<int>(text) : std::nullopt;
    const auto size = is_fetch ? take_number<std::size_t>(text) : std::nullopt;
    if (!size || *num_rows < 1 || *is_fetch < 0 || *is_fetch > 1 || *size > text.size())
      return std::nullopt;
    loads.push_back({std::string(text.substr(0, *size)), *num_rows, *is_fetch == 1});
    text.remove_prefix(*size);
  }
  return loads;
}

}  // namespace troupe
