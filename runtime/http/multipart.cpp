#include "runtime/http/multipart.hpp"

#include <algorithm>

#include "runtime/http/field_syntax.hpp"
#include "runtime/http/target.hpp"

namespace troupe {
namespace {

constexpr std::string_view kFormType = "multipart/form-data";
constexpr std::size_t kMaxBoundaryBytes = 70;  // RFC 2046, section 5.1.1

/// The value of `name` in "...; name=value; name=\"value\"".
std::optional<std::string> form_parameter(std::string_view field, std::string_view name) {
  std::size_t at = field.find(';');
  while (at < field.size()) {
    std::size_t begin = at + 1;
    while (begin < field.size() && field[begin] == ' ') ++begin;
    const std::size_t equals = field.find('=', begin);
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string_view key = trimmed(field.substr(begin, equals - begin));
    std::string_view value = field.substr(equals + 1);
    if (value.starts_with('"')) {
      const std::size_t end = std::min(value.find('"', 1), value.size());
      value = value.substr(1, end - 1);
      at = field.find(';', std::min(equals + 1 + end, field.size()));
    } else {
      at = field.find(';', equals);
      value = trimmed(value.substr(0, value.find(';')));
    }
    if (equal_ignoring_case(key, name)) return std::string(value);
  }
  return std::nullopt;
}

/// What browsers do not leave as it is in a name.
std::string unquoted(std::string text) {
  for (std::size_t at = 0; (at = text.find("%22", at)) != std::string::npos; ++at)
    text.replace(at, 3, "\"");
  return text;
}

}  // namespace

Result<std::string> MultipartParser::boundary_of(std::string_view content_type) {
  const std::string_view type = trimmed(content_type.substr(0, content_type.find(';')));
  if (!equal_ignoring_case(type, kFormType))
    return invalid_argument("Content-Type is \"" + std::string(content_type.substr(0, 128)) +
                                "\", a file is sent as multipart/form-data",
                            "Content-Type");
  const auto boundary = form_parameter(content_type, "boundary");
  if (!boundary || boundary->empty() || boundary->size() > kMaxBoundaryBytes)
    return invalid_argument(
        "Content-Type has no boundary of 1 to " + std::to_string(kMaxBoundaryBytes) + " characters",
        "Content-Type");
  return *boundary;
}

MultipartParser::MultipartParser(const std::string& boundary, Handler handler)
    : delimiter_("\r\n--" + boundary), handler_(std::move(handler)) {}

void MultipartParser::feed(std::string_view bytes) {
  if (state_ == State::kEnd || state_ == State::kBroken) return;
  buffer_ += bytes;
  while (step()) continue;
  if (state_ == State::kEnd || state_ == State::kBroken) buffer_.clear();
}

Result<void> MultipartParser::finish() const {
  if (state_ == State::kEnd) return {};
  return Error{
      ErrorCode::kCorrupt,
      "the body is not multipart/form-data: " +
          (state_ == State::kBroken ? problem_ : std::string("it ends before its last boundary")),
      ""};
}

/// False: more bytes are needed, or none.
bool MultipartParser::step() {
  switch (state_) {
    case State::kPreamble:
    case State::kContent:
      return take_content();
    case State::kBoundary:
      if (buffer_.size() < 2) return false;
      if (buffer_.starts_with("--")) {
        state_ = State::kEnd;
      } else if (buffer_.starts_with("\r\n")) {
        state_ = State::kHead;
      } else {
        break_off("a boundary has something behind it");
      }
      return state_ == State::kHead;
    case State::kHead: {
      const std::size_t end = buffer_.find("\r\n\r\n");
      if (end == std::string::npos || end > kMaxPartHeadBytes) {
        if (buffer_.size() > kMaxPartHeadBytes)
          break_off("the head of a part is larger than " + std::to_string(kMaxPartHeadBytes) +
                    " bytes");
        return false;
      }
      if (++num_parts_ > kMaxParts) {
        break_off("it has more than " + std::to_string(kMaxParts) + " parts");
        return false;
      }
      take_head(std::string_view(buffer_).substr(0, end));
      buffer_.erase(0, end + 4);
      if (state_ == State::kBroken) return false;
      state_ = State::kContent;
      return true;
    }
    case State::kEnd:
    case State::kBroken:
      break;
  }
  return false;
}

bool MultipartParser::take_content() {
  const std::size_t end = buffer_.find(delimiter_);
  const bool found = end != std::string::npos;
  // What may be the beginning of a delimiter waits.
  const std::size_t size =
      found ? end : buffer_.size() - std::min(buffer_.size(), delimiter_.size() - 1);
  if (state_ == State::kContent && size > 0)
    handler_.content(std::string_view(buffer_).substr(0, size));
  buffer_.erase(0, found ? end + delimiter_.size() : size);
  if (found) state_ = State::kBoundary;
  return found;
}

void MultipartParser::take_head(std::string_view head) {
  while (!head.empty()) {
    const std::string_view line = head.substr(0, head.find("\r\n"));
    head.remove_prefix(std::min(head.size(), line.size() + 2));
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos ||
        !equal_ignoring_case(line.substr(0, colon), "Content-Disposition"))
      continue;
    const std::string_view value = line.substr(colon + 1);
    const auto name = form_parameter(value, "name");
    if (!name) return break_off("a part has no name");
    FormPart part{.name = unquoted(*name),
                  .filename = unquoted(form_parameter(value, "filename").value_or(""))};
    // RFC 5987: UTF-8''na%C3%AFve
    if (const auto extended = form_parameter(value, "filename*")) {
      const std::size_t quote = extended->rfind('\'');
      if (quote != std::string::npos) part.filename = unescaped(extended->substr(quote + 1));
    }
    return handler_.begin(part);
  }
  break_off("a part has no Content-Disposition");
}

void MultipartParser::break_off(std::string what) {
  state_ = State::kBroken;
  problem_ = std::move(what);
}

}  // namespace troupe
