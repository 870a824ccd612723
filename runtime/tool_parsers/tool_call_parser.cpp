#include "runtime/tool_parsers/tool_call_parser.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/base/text_cut.hpp"

namespace troupe {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kJsonSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kJsonSpace) + 1 - begin);
}

std::string_view without_line_breaks_around(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

}  // namespace

ToolCallParser::ToolCallParser(const ToolFormat& format,
                               std::shared_ptr<const ToolDeclarations> tools)
    : format_(format), tools_(std::move(tools)) {
  for (const std::string_view pattern : format.patterns) {
    Alternative alternative{.pattern = compile_pattern(pattern)};
    if (const std::string_view trigger = trigger_of(alternative.pattern); !trigger.empty()) {
      const auto known = std::ranges::find(literals_, trigger);
      alternative.literal = static_cast<int>(known - literals_.begin());
      if (known == literals_.end()) literals_.push_back(trigger);
    }
    alternatives_.push_back(std::move(alternative));
  }
  num_triggers_ = static_cast<int>(literals_.size());
  markers_ = format.markers;
  for (const std::string_view marker : {format.section_begin, format.section_end})
    if (!marker.empty()) markers_.push_back(trimmed(marker));
  literals_.insert(literals_.end(), markers_.begin(), markers_.end());
  for (const std::string_view literal : literals_)
    first_bytes_.set(static_cast<unsigned char>(literal.front()));
  if (!format.parameter.empty()) {
    parameter_ = compile_pattern(format.parameter);
    value_end_ = trimmed(parameter_.back().literal);
  }
}

void ToolCallParser::feed(std::string_view text, AnswerDelta& delta) {
  buffer_ += text;
  run(delta);
}

void ToolCallParser::finish(AnswerDelta& delta) {
  ended_ = true;
  run(delta);
  if (state_ == State::kText && !after_call_) delta.content += std::exchange(space_, {});
}

void ToolCallParser::run(AnswerDelta& delta) {
  while (step(delta)) {
  }
  buffer_.erase(0, std::exchange(at_, 0));
}

bool ToolCallParser::step(AnswerDelta& delta) {
  switch (state_) {
    case State::kText:
      return text_step(delta);
    case State::kJsonArguments:
      return json_step(delta);
    case State::kObjectRest:
      return object_rest_step();
    case State::kNextCall:
      return next_call_step(delta);
    case State::kParameters:
      return parameters_step(delta);
    case State::kParameterValue:
      return parameter_value_step(delta);
    case State::kPythonArguments:
      return python_step(delta);
    case State::kPythonValue:
      return python_value_step(delta);
    case State::kEscapedArguments:
      return escaped_step(delta);
    case State::kTail:
      return tail_step();
  }
  return false;
}

// ---- Text --------------------------------------------------------------------------------------

bool ToolCallParser::text_step(AnswerDelta& delta) {
  if (at_ == buffer_.size()) return false;
  const char c = buffer_[at_];
  if (kJsonSpace.find(c) != kJsonSpace.npos) {
    space_ += c;
    ++at_;
    return true;
  }
  if (first_bytes_[static_cast<unsigned char>(c)]) {
    bool is_text = false;
    const bool went_on = literal_step(delta, is_text);
    if (!is_text) return went_on;
  }
  if (after_call_ && !format_.separator.empty() && rest().starts_with(format_.separator)) {
    at_ += format_.separator.size();
    return true;
  }
  if (!has_content_ || after_call_) {
    const Match match = try_call(-1, delta);
    if (match == Match::kYes) return true;
    if (match == Match::kMore && !ended_) return false;
  }
  std::size_t end = 1;
  while (at_ + end < buffer_.size() &&
         !first_bytes_[static_cast<unsigned char>(buffer_[at_ + end])] &&
         kJsonSpace.find(buffer_[at_ + end]) == kJsonSpace.npos) {
    ++end;
  }
  content(end, delta);
  return true;
}

/// Sets is_text if no literal begins here.
bool ToolCallParser::literal_step(AnswerDelta& delta, bool& is_text) {
  int literal = -1;
  for (int i = 0; i < static_cast<int>(literals_.size()); ++i) {
    const std::string_view candidate = literals_[static_cast<std::size_t>(i)];
    if (rest().starts_with(candidate)) {
      if (literal < 0 || candidate.size() > literals_[static_cast<std::size_t>(literal)].size())
        literal = i;
    } else if (!ended_ && candidate.starts_with(rest())) {
      return false;
    }
  }
  is_text = literal < 0;
  if (is_text) return true;
  const std::size_t num_bytes = literals_[static_cast<std::size_t>(literal)].size();
  if (literal >= num_triggers_) {
    at_ += num_bytes;
    return true;
  }
  switch (try_call(literal, delta)) {
    case Match::kYes:
      return true;
    case Match::kNo:
      if (std::ranges::find(markers_, literals_[static_cast<std::size_t>(literal)]) !=
          markers_.end()) {
        at_ += num_bytes;
      } else {
        content(num_bytes, delta);
      }
      return true;
    case Match::kMore:
      break;
  }
  if (ended_) at_ = buffer_.size();  // cut off before its name
  return false;
}

/// The first pattern that fits, of those with this literal (-1: with none).
Match ToolCallParser::try_call(int literal, AnswerDelta& delta) {
  const ToolDeclarations nothing;
  for (const Alternative& alternative : alternatives_) {
    if (alternative.literal != literal) continue;
    // Without a marker only the name distinguishes a call from other text.
    const ToolDeclarations* const known =
        literal >= 0 ? nullptr : (tools_ == nullptr ? &nothing : tools_.get());
    CallHeader header;
    const Match match = match_header(alternative.pattern, buffer_, at_, known, header);
    if (match == Match::kNo) continue;
    if (match == Match::kYes) {
      pattern_ = &alternative.pattern;
      begin_call(header, delta);
    }
    return match;
  }
  return Match::kNo;
}

void ToolCallParser::content(std::size_t num_bytes, AnswerDelta& delta) {
  delta.content += std::exchange(space_, {});
  delta.content += rest().substr(0, num_bytes);
  at_ += num_bytes;
  has_content_ = true;
  after_call_ = false;
}

// ---- Calls -------------------------------------------------------------------------------------

void ToolCallParser::begin_call(const CallHeader& header, AnswerDelta& delta) {
  if (has_content_ && !after_call_) delta.content += space_;
  space_.clear();
  part_ = header.part;
  name_ = header.name;
  at_ = header.end;
  ToolCallDelta& call = delta.tool_call(num_calls_++);
  call.name = header.name;
  call.model_id = header.model_id;
  value_begun_ = false;
  num_parameters_ = 0;
  switch ((*pattern_)[part_].kind) {
    case PatternPartKind::kParameters:
      state_ = State::kParameters;
      break;
    case PatternPartKind::kPython:
      state_ = State::kPythonArguments;
      break;
    case PatternPartKind::kEscaped:
      state_ = State::kEscapedArguments;
      scanner_ = ValueScanner(true);
      ++at_;
      break;
    default:
      state_ = State::kJsonArguments;
      if (!header.is_complete) break;
      arguments(header.arguments, delta);
      end_object();
  }
}

void ToolCallParser::arguments(std::string_view text, AnswerDelta& delta) const {
  if (!text.empty()) delta.tool_call(num_calls_ - 1).arguments += text;
}

void ToolCallParser::end_call() {
  state_ = State::kTail;
  ++part_;
}

void ToolCallParser::end_object() {
  if ((*pattern_)[part_].kind == PatternPartKind::kObject) return end_call();
  state_ = State::kNextCall;
}

bool ToolCallParser::json_step(AnswerDelta& delta) {
  const PatternPartKind kind = (*pattern_)[part_].kind;
  const auto finish_value = [&] {
    nesting_ = {};
    if (kind == PatternPartKind::kJson) return end_call();
    state_ = State::kObjectRest;
  };
  if (!value_begun_) {
    at_ = skip_space(buffer_, at_);
    if (at_ == buffer_.size()) return false;
    nesting_ = {};
    const char c = buffer_[at_];
    if (c != '{' && c != '[') {
      // A string with JSON in it, or null: some models write these.
      const std::size_t size = ValueScanner().find(rest(), ",}");
      if (size == std::string_view::npos) return false;
      const auto value = nlohmann::json::parse(rest().substr(0, size), nullptr, false);
      const std::string text = value.is_string() ? value.get<std::string>() : "{}";
      arguments(text, delta);
      at_ += size;
      finish_value();
      return true;
    }
    value_begun_ = true;
  }
  std::size_t end = at_;
  bool is_complete = false;
  while (end < buffer_.size() && !is_complete) {
    nesting_.add(buffer_[end++]);
    is_complete = nesting_.depth() == 0;
  }
  if (end == at_) return false;
  arguments(rest().substr(0, end - at_), delta);
  at_ = end;
  if (is_complete) finish_value();
  return is_complete;
}

/// Up to the brace that closes the call's object.
bool ToolCallParser::object_rest_step() {
  while (at_ < buffer_.size()) {
    nesting_.add(buffer_[at_++]);
    if (nesting_.depth() >= 0) continue;
    end_object();
    return true;
  }
  return false;
}

bool ToolCallParser::next_call_step(AnswerDelta& delta) {
  const std::size_t next = skip_space(buffer_, at_);
  if (next == buffer_.size()) return false;
  const PatternPartKind kind = (*pattern_)[part_].kind;
  if (buffer_[next] == ',') {
    CallHeader header;
    header.part = part_;
    switch (match_next(kind, buffer_, next + 1, header)) {
      case Match::kYes:
        begin_call(header, delta);
        return true;
      case Match::kMore:
        return false;
      case Match::kNo:
        break;
    }
  } else if (buffer_[next] == ']' && kind == PatternPartKind::kObjects) {
    at_ = next + 1;
  }
  end_call();
  return true;
}

bool ToolCallParser::tail_step() {
  for (; part_ < pattern_->size(); ++part_) {
    const std::string_view literal = trimmed((*pattern_)[part_].literal);
    std::size_t position = skip_space(buffer_, at_);
    const Match match = match_literal(literal, buffer_, position);
    if (match == Match::kMore && !ended_) return false;
    if (match == Match::kMore) position = buffer_.size();  // cut off in the literal
    if (match != Match::kNo) at_ = position;
  }
  state_ = State::kText;
  after_call_ = true;
  return true;
}

// ---- Arguments in other notations --------------------------------------------------------------

void ToolCallParser::begin_parameter(std::string_view key, AnswerDelta& delta) {
  std::string text = num_parameters_++ == 0 ? "{" : ", ";
  text.append(1, '"').append(json_escaped(key)).append("\": ");
  arguments(text, delta);
}

bool ToolCallParser::parameters_step(AnswerDelta& delta) {
  const std::size_t next = skip_space(buffer_, at_);
  ParameterHeader header;
  switch (match_parameter(parameter_, buffer_, next, header)) {
    case Match::kMore:
      return false;
    case Match::kNo:
      arguments(num_parameters_ == 0 ? "{}" : "}", delta);
      at_ = next;
      end_call();
      return true;
    case Match::kYes:
      break;
  }
  begin_parameter(header.key, delta);
  at_ = header.end;
  // A format may say itself which values are strings.
  is_string_ = header.model_id.empty()
                   ? tools_ == nullptr || tools_->type(name_, header.key) == ParameterType::kString
                   : header.model_id == "true";
  if (is_string_) arguments("\"", delta);
  value_begun_ = false;
  state_ = State::kParameterValue;
  return true;
}

bool ToolCallParser::parameter_value_step(AnswerDelta& delta) {
  const std::size_t end = rest().find(value_end_);
  const bool is_complete = end != std::string_view::npos;
  if (!is_string_) {
    if (!is_complete) return false;
    arguments(json_of_text(without_line_breaks_around(rest().substr(0, end))), delta);
  } else {
    // One line break at each side belongs to the format.
    if (!value_begun_) {
      if (rest().empty()) return false;
      value_begun_ = true;
      if (rest().front() == '\n') {
        ++at_;
        return true;
      }
    }
    std::string_view value = rest().substr(0, end);
    if (is_complete) {
      if (value.ends_with('\n')) value.remove_suffix(1);
    } else if (!ended_) {
      value = value.substr(0, cut_before_line_end(value, value_end_));
      value = whole_code_points(value);
    }
    arguments(json_escaped(value), delta);
    if (!is_complete) {
      at_ += value.size();
      return false;
    }
    arguments("\"", delta);
  }
  at_ += end + value_end_.size();
  state_ = State::kParameters;
  return true;
}

bool ToolCallParser::python_step(AnswerDelta& delta) {
  std::size_t next = skip_space(buffer_, at_);
  if (next < buffer_.size() && buffer_[next] == ',') next = skip_space(buffer_, next + 1);
  if (next == buffer_.size()) return false;
  std::size_t end = next;
  constexpr std::string_view kNotInName = "=,() \t\r\n[]{}\"'";
  while (end < buffer_.size() && kNotInName.find(buffer_[end]) == kNotInName.npos) ++end;
  const std::size_t equals = skip_space(buffer_, end);
  if (equals == buffer_.size()) return false;
  if (end > next && buffer_[equals] == '=') {
    begin_parameter(std::string_view(buffer_).substr(next, end - next), delta);
    at_ = skip_space(buffer_, equals + 1);
    scanner_ = ValueScanner();
    state_ = State::kPythonValue;
    return true;
  }
  // The end, or something that is no keyword argument.
  arguments(num_parameters_ == 0 ? "{}" : "}", delta);
  at_ = buffer_[next] == ')' ? next + 1 : next;
  state_ = State::kNextCall;
  return true;
}

bool ToolCallParser::python_value_step(AnswerDelta& delta) {
  const std::size_t size = scanner_.find(rest(), ",)");
  if (size == std::string_view::npos) return false;
  const std::string_view value = trimmed(rest().substr(0, size));
  const std::optional<std::string> json = json_of_python(value);
  arguments(json ? *json : '"' + json_escaped(value) + '"', delta);
  at_ += size;
  state_ = State::kPythonArguments;
  return true;
}

bool ToolCallParser::escaped_step(AnswerDelta& delta) {
  const std::size_t size = scanner_.find(rest(), "}");
  if (size == std::string_view::npos) return false;
  const std::string text = '{' + std::string(rest().substr(0, size)) + '}';
  arguments(json_of_escaped(text).value_or(text), delta);
  at_ += size + 1;
  end_call();
  return true;
}

}  // namespace troupe
