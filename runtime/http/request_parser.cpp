#include "runtime/http/request_parser.hpp"

#include <algorithm>
#include <charconv>

#include "runtime/base/check.hpp"
#include "runtime/http/field_syntax.hpp"
#include "runtime/http/target.hpp"

namespace troupe {
namespace {

constexpr std::string_view kTransferEncoding = "Transfer-Encoding";
constexpr std::string_view kContentLength = "Content-Length";
constexpr std::size_t kMaxEchoBytes = 64;
/// Around a file that is uploaded.
constexpr std::uint64_t kMaxFormBytes = 64 << 10;

std::string quote(std::string_view text) {
  return "\"" + std::string(text.substr(0, kMaxEchoBytes)) + "\"";
}

/// Checks the characters of uri-host [ ":" port ] (RFC 9110, section 7.2).
bool is_host(std::string_view text) noexcept {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return is_visible_char(c) &&
           std::string_view("\"#,/<>?@\\^`{|}").find(c) == std::string_view::npos;
  });
}

}  // namespace

std::size_t RequestParser::feed(std::string_view bytes) {
  CHECK(state_ <= State::kBody, static_cast<int>(state_));
  if (state_ == State::kHead) return read_head(bytes);
  if (state_ == State::kHeadDone) {
    state_ = chunked_ || content_left_ > 0 ? State::kBody : State::kDone;
    if (state_ == State::kDone) return 0;
  }
  return read_body(bytes);
}

std::size_t RequestParser::read_head(std::string_view bytes) {
  std::size_t used = 0;
  while (state_ == State::kHead && used < bytes.size()) {
    const std::size_t end = bytes.find('\n', used);
    const bool whole = end != std::string_view::npos;
    const std::string_view piece = bytes.substr(used, whole ? end + 1 - used : end);
    used += piece.size();
    num_head_bytes_ += piece.size();
    if (num_head_bytes_ > limits_.max_header_bytes) {
      refuse(431, "the request headers exceed max_header_bytes, " +
                      std::to_string(limits_.max_header_bytes));
      break;
    }
    line_ += piece;
    // Other protocols (such as TLS) may never send the end of a line.
    if (!has_request_line_ && line_.front() != '\r' && !is_token_char(line_.front())) {
      malformed("no method at its start");
    } else if (whole) {
      take_line();
      line_.clear();
    }
  }
  return used;
}

void RequestParser::take_line() {
  line_.pop_back();
  if (line_.empty() || line_.back() != '\r') return malformed("a line does not end with CR LF");
  line_.pop_back();
  if (!std::all_of(line_.begin(), line_.end(), is_field_char))
    return malformed("a line has a control character");
  if (!has_request_line_) {
    if (!line_.empty()) take_request_line();  // an empty line before it is ignored: section 2.2
  } else if (line_.empty()) {
    finish_head();
  } else {
    take_field();
  }
}

void RequestParser::take_request_line() {
  const std::string_view line = line_;
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == last) return malformed("the request line is not METHOD TARGET HTTP/1.1");
  const std::string_view method = line.substr(0, first), version = line.substr(last + 1);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (!is_token(method)) return malformed("the method is " + quote(method));
  if (target.empty() || !std::all_of(target.begin(), target.end(), is_visible_char))
    return malformed("the target has a space, or characters that are not ASCII");
  if (!version.starts_with("HTTP/")) return malformed("the version is " + quote(version));
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return refuse(505, "the request is in " + std::string(version.substr(0, kMaxEchoBytes)) +
                           ", this server supports HTTP/1.1 only");
  }
  has_request_line_ = true;
  is_http_1_0_ = version == "HTTP/1.0";
  request_.method = method;
  request_.target = target;
}

void RequestParser::take_field() {
  const std::string_view line = line_;
  if (line.front() == ' ' || line.front() == '\t') return malformed("a folded line");
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return malformed("a line without a colon");
  const std::string_view name = line.substr(0, colon);
  if (!is_token(name)) return malformed("a field has the name " + quote(name));
  request_.headers.emplace_back(name, trimmed(line.substr(colon + 1)));
}

void RequestParser::finish_head() {
  keep_alive_ = is_http_1_0_ ? connection_has("keep-alive") : !connection_has("close");
  state_ = State::kHeadDone;
  take_host();
  if (state_ != State::kRefused) take_framing();
}

/// RFC 9112, section 3.2.
void RequestParser::take_host() {
  const auto is_host_field = [](const auto& field) {
    return equal_ignoring_case(field.first, "Host");
  };
  HttpHeaders& headers = request_.headers;
  const auto num_hosts = std::count_if(headers.begin(), headers.end(), is_host_field);
  if (num_hosts > 1 || (num_hosts == 0 && !is_http_1_0_))
    return malformed("it has " + std::to_string(num_hosts) + " Host fields, must be 1");
  std::string& target = request_.target;
  const auto field = std::find_if(headers.begin(), headers.end(), is_host_field);
  if (field != headers.end() && !is_host(field->second))
    return malformed("Host is " + quote(field->second));
  const std::size_t scheme_end = target.find("://");
  if (target.front() == '/' || scheme_end == std::string::npos) return;
  // The absolute form, which contains the host.
  const std::string_view scheme = std::string_view(target).substr(0, scheme_end);
  if (!equal_ignoring_case(scheme, "http") && !equal_ignoring_case(scheme, "https"))
    return malformed("the target is " + quote(target));
  const std::size_t begin = scheme_end + 3;
  const std::size_t end = std::min(target.find_first_of("/?", begin), target.size());
  std::string host = target.substr(begin, end - begin);
  if (host.empty() || !is_host(host)) return malformed("the target is " + quote(target));
  target.erase(0, end);
  if (target.empty() || target.front() == '?') target.insert(0, 1, '/');
  if (field != headers.end()) {
    field->second = std::move(host);
  } else {
    headers.emplace_back("Host", std::move(host));
  }
}

/// Determines the length of the body: RFC 9112, section 6.3, without its lenient options.
void RequestParser::take_framing() {
  std::size_t num_lengths = 0, num_codings = 0;
  std::string_view length, coding;
  for (const auto& [name, value] : request_.headers) {
    if (equal_ignoring_case(name, kContentLength)) {
      ++num_lengths;
      length = value;
    } else if (equal_ignoring_case(name, kTransferEncoding)) {
      ++num_codings;
      coding = value;
    }
  }
  if (num_lengths > 1 || num_codings > 1 || (num_lengths > 0 && num_codings > 0)) {
    return malformed("it has " + std::to_string(num_lengths) + " Content-Length and " +
                     std::to_string(num_codings) + " Transfer-Encoding fields, at most 1 of both");
  }
  if (num_codings > 0) {
    if (is_http_1_0_) return malformed("HTTP/1.0 has no Transfer-Encoding");
    if (!equal_ignoring_case(coding, "chunked"))
      return malformed("Transfer-Encoding is " + quote(coding) + ", only chunked is supported");
    request_.has_body = true;
    chunked_.emplace(max_body_bytes());
  } else if (num_lengths > 0) {
    take_content_length(length);
  }
}

void RequestParser::take_content_length(std::string_view text) {
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(),
                                                   [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return malformed("Content-Length is " + quote(text) + ", must be a number");
  std::uint64_t length = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  if (error != std::errc() || length > max_body_bytes()) {
    return refuse(413, "the request body exceeds " + limit_text());
  }
  request_.has_body = true;
  content_left_ = length;
}

std::uint64_t RequestParser::max_body_bytes() const noexcept {
  const bool uploads = request_.method == "POST" && request_.path() == kFilesPath;
  if (!uploads || limits_.max_upload_bytes == 0) return limits_.max_body_bytes;
  return limits_.max_upload_bytes + kMaxFormBytes;
}

std::string RequestParser::limit_text() const {
  const std::uint64_t limit = max_body_bytes();
  if (limit == limits_.max_body_bytes) return "max_body_bytes, " + std::to_string(limit);
  return "max-batch-file-bytes, " + std::to_string(limits_.max_upload_bytes);
}

std::size_t RequestParser::read_body(std::string_view bytes) {
  const std::size_t used = collect_body(bytes);
  if (request_.reader != nullptr) {
    num_read_bytes_ += request_.body.size();
    request_.reader->take(request_.body);
    request_.body.clear();
  }
  return used;
}

std::size_t RequestParser::collect_body(std::string_view bytes) {
  std::string& body = request_.body;
  if (!chunked_) {
    const auto size =
        static_cast<std::size_t>(std::min<std::uint64_t>(content_left_, bytes.size()));
    body.append(bytes.substr(0, size));
    content_left_ -= size;
    if (content_left_ == 0) state_ = State::kDone;
    return size;
  }
  const std::size_t used = chunked_->feed(bytes, body);
  switch (chunked_->state()) {
    case ChunkedBody::State::kOpen:
      break;
    case ChunkedBody::State::kDone:
      state_ = State::kDone;
      break;
    case ChunkedBody::State::kMalformed:
      malformed("the chunks of its body");
      break;
    case ChunkedBody::State::kTooLarge:
      refuse(413, "the request's body, or what its chunks have around it, is larger than " +
                      limit_text());
      break;
  }
  return used;
}

HttpRequest RequestParser::take() {
  CHECK(state_ == State::kDone, static_cast<int>(state_));
  return std::move(request_);
}

bool RequestParser::expects_continue() const noexcept {
  return !is_http_1_0_ && equal_ignoring_case(request_.header("Expect"), "100-continue");
}

bool RequestParser::connection_has(std::string_view option) const {
  bool found = false;
  for (const auto& [name, value] : request_.headers) {
    if (!equal_ignoring_case(name, "Connection")) continue;
    for_each_element(value,
                     [&](std::string_view each) { found |= equal_ignoring_case(each, option); });
  }
  return found;
}

void RequestParser::refuse(int status, std::string problem) {
  state_ = State::kRefused;
  status_ = status;
  problem_ = std::move(problem);
}

void RequestParser::malformed(std::string_view what) {
  refuse(400, "malformed HTTP request: " + std::string(what));
}

}  // namespace troupe
