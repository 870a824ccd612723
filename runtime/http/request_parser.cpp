#include "runtime/http/request_parser.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <string>

#include "runtime/base/check.hpp"

namespace troupe {
namespace {

namespace http = boost::beast::http;

std::string to_string(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

struct RequestParser::Impl {
  http::request_parser<http::string_body> parser;
  State state = State::kHead;
  HttpRequest head;
  std::string problem;

  void read_head() {
    const auto& message = parser.get();
    head.method = to_string(message.method_string());
    head.target = to_string(message.target());
    for (const auto& field : message) {
      head.headers.emplace_back(to_string(field.name_string()), to_string(field.value()));
    }
    head.has_body = parser.content_length().has_value() || parser.chunked();
  }

  void fail(const boost::system::error_code& error) {
    problem = error.message();
    if (error == http::error::header_limit) {
      state = State::kHeadTooLarge;
    } else if (error == http::error::body_limit) {
      state = State::kBodyTooLarge;
    } else {
      state = State::kMalformed;
    }
  }
};

RequestParser::RequestParser(const HttpLimits& limits) : impl_(std::make_unique<Impl>()) {
  impl_->parser.header_limit(limits.max_header_bytes);
  impl_->parser.body_limit(limits.max_body_bytes);
}
RequestParser::~RequestParser() = default;
RequestParser::RequestParser(RequestParser&&) noexcept = default;
RequestParser& RequestParser::operator=(RequestParser&&) noexcept = default;

std::size_t RequestParser::feed(std::string_view bytes) {
  CHECK(impl_->state <= State::kBody, static_cast<int>(impl_->state));
  auto& parser = impl_->parser;
  if (impl_->state == State::kHeadDone) {
    impl_->state = parser.is_done() ? State::kDone : State::kBody;
    if (impl_->state == State::kDone) return 0;
    parser.eager(true);  // all of the body that is there, in one call
  }
  // Beast asserts that it never sees less than this of a last chunk; every chunked body has more to
  // come until it has this much.
  constexpr std::string_view kShortestEnd = "0\r\n\r\n";
  if (impl_->state == State::kBody && parser.chunked() && bytes.size() < kShortestEnd.size())
    return 0;
  boost::system::error_code error;
  const std::size_t used = parser.put(boost::asio::const_buffer(bytes.data(), bytes.size()), error);
  if (error && error != http::error::need_more) {
    impl_->fail(error);
  } else if (impl_->state == State::kHead && parser.is_header_done()) {
    impl_->read_head();
    impl_->state = State::kHeadDone;
  } else if (impl_->state == State::kBody && parser.is_done()) {
    impl_->state = State::kDone;
  }
  return used;
}

RequestParser::State RequestParser::state() const noexcept { return impl_->state; }
std::string_view RequestParser::problem() const noexcept { return impl_->problem; }
const HttpRequest& RequestParser::head() const noexcept { return impl_->head; }

HttpRequest RequestParser::take() {
  CHECK(impl_->state == State::kDone, static_cast<int>(impl_->state));
  HttpRequest request = std::move(impl_->head);
  request.body = std::move(impl_->parser.get().body());
  return request;
}

bool RequestParser::keep_alive() const noexcept { return impl_->parser.keep_alive(); }
bool RequestParser::is_http_1_0() const noexcept { return impl_->parser.get().version() < 11; }
bool RequestParser::expects_continue() const noexcept {
  return !is_http_1_0() && impl_->head.header("Expect") == "100-continue";
}

}  // namespace troupe
