#include "runtime/http/stream_position.hpp"

#include <charconv>
#include <optional>

namespace troupe {
namespace {

std::optional<std::size_t> parse_count(std::string_view text) {
  std::size_t count = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return count;
}

std::optional<SamplePosition> parse_sample(std::string_view text) {
  if (text == "-") return SamplePosition{};
  SamplePosition position{.begun = true, .finished = text.ends_with('e')};
  if (position.finished) text.remove_suffix(1);
  const std::size_t dot = text.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const auto num_tokens = parse_count(text.substr(0, dot));
  const auto num_bytes = parse_count(text.substr(dot + 1));
  if (!num_tokens || !num_bytes) return std::nullopt;
  position.num_tokens = *num_tokens;
  position.num_bytes = *num_bytes;
  return position;
}

}  // namespace

std::string to_text(const StreamPosition& position) {
  std::string text;
  for (const SamplePosition& sample : position.samples) {
    if (!text.empty()) text += '_';
    if (!sample.begun) {
      text += '-';
      continue;
    }
    text.append(std::to_string(sample.num_tokens)).append(1, '.');
    text += std::to_string(sample.num_bytes);
    if (sample.finished) text += 'e';
  }
  if (position.has_usage) text += 'u';
  return text;
}

Result<StreamPosition> parse_stream_position(std::string_view text, std::size_t num_samples) {
  StreamPosition position;
  position.samples.resize(num_samples);
  if (text.empty()) return position;
  const Error error =
      invalid_argument("starting_after is \"" + std::string(text.substr(0, 64)) +
                           "\", it must be the id of an event of this stream, which has " +
                           std::to_string(num_samples) + " samples",
                       "starting_after");
  position.has_usage = text.ends_with('u');
  if (position.has_usage) text.remove_suffix(1);
  for (std::size_t i = 0; i < num_samples; ++i) {
    const std::string_view part = text.substr(0, text.find('_'));
    const std::optional<SamplePosition> sample = parse_sample(part);
    if (!sample) return error;
    position.samples[i] = *sample;
    text.remove_prefix(part.size());
    const bool is_last = i + 1 == num_samples;
    if (text.empty() != is_last) return error;
    if (!is_last) text.remove_prefix(1);
  }
  return position;
}

}  // namespace troupe
