#include "runtime/reasoning/reasoning_parser.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/text_cut.hpp"

namespace troupe {

ReasoningParser::ReasoningParser(ReasoningFormat format)
    : format_(std::move(format)), state_(format_.starts_inside ? State::kStart : State::kBefore) {}

void ReasoningParser::feed(std::string_view text, std::string& reasoning, std::string& answer) {
  buffer_ += text;
  while (step(false, reasoning, answer)) {
  }
}

void ReasoningParser::finish(std::string& reasoning, std::string& answer) {
  while (step(true, reasoning, answer)) {
  }
}

/// The first marker may be missing.
bool ReasoningParser::start_step(bool ended) {
  const std::size_t begin = buffer_.find_first_not_of(" \t\r\n");
  const std::string_view rest =
      begin == std::string::npos ? std::string_view() : std::string_view(buffer_).substr(begin);
  if (rest.starts_with(format_.begin)) {
    buffer_.erase(0, begin + format_.begin.size());
  } else if (!ended && format_.begin.starts_with(rest)) {
    return false;
  }
  state_ = State::kInside;
  return true;
}

bool ReasoningParser::step(bool ended, std::string& reasoning, std::string& answer) {
  if (state_ == State::kStart) return start_step(ended);
  if (buffer_.empty()) return false;
  if (state_ == State::kAfter && !format_.repeats) {
    answer += std::exchange(buffer_, {});
    return false;
  }
  const bool is_inside = state_ == State::kInside;
  std::string& to = is_inside ? reasoning : answer;
  const std::string_view text = buffer_;
  std::size_t found = text.find(is_inside ? format_.end : format_.begin);
  std::size_t marker = is_inside ? format_.end.size() : format_.begin.size();
  std::size_t cut = cut_before(text, is_inside ? format_.end : format_.begin);
  if (is_inside) {
    for (const std::string_view end : format_.implicit_ends) {
      cut = std::min(cut, cut_before(text, end));
      if (const std::size_t implicit = text.find(end); implicit < found) {
        found = implicit;
        marker = 0;
      }
    }
  }
  if (found == text.npos) {
    if (ended) cut = text.size();
    to += text.substr(0, cut);
    buffer_.erase(0, cut);
    return false;
  }
  to += text.substr(0, found);
  buffer_.erase(0, found + marker);
  state_ = is_inside ? State::kAfter : State::kInside;
  return true;
}

}  // namespace troupe
