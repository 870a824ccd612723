#include "runtime/structured_output/whitespace_style.hpp"

#include <cstddef>

namespace troupe {
namespace {

/// Longer ones are no style.
constexpr std::size_t kMaxRun = 64;

/// What stands for itself in JSON; all else is alike.
char kind_of(char c) {
  constexpr std::string_view kStructural = "{}[],:\"";
  return kStructural.find(c) != std::string_view::npos ? c : 'a';
}

}  // namespace

void WhitespaceStyle::read(char c) {
  if (is_blank(c)) {
    if (run_.size() < kMaxRun) run_ += c;
    return;
  }
  const char kind = kind_of(c);
  runs_[{last_, kind}] = run_;
  if (last_ == ':') behind_colon_ = run_;
  // Where each item has a line of its own, so has the second one.
  const bool is_line = (last_ == '{' || last_ == '[') && run_.find('\n') != std::string::npos;
  if (last_ == ',' || is_line) behind_comma_ = run_;
  run_.clear();
  last_ = kind;
}

std::string_view WhitespaceStyle::before(char next) const {
  const auto known = runs_.find({last_, kind_of(next)});
  std::string_view run;
  if (known != runs_.end())
    run = known->second;
  else if (last_ == ':')
    run = behind_colon_;
  else if (last_ == ',')
    run = behind_comma_;
  return run.starts_with(run_) ? run.substr(run_.size()) : std::string_view();
}

}  // namespace troupe
