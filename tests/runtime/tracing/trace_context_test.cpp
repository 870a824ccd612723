#include "runtime/tracing/trace_context.hpp"

#include <boost/test/unit_test.hpp>
#include <string>

#include "runtime/tracing/span_exporter.hpp"

namespace troupe {
namespace {

const std::string kTrace(32, 'a'), kParent(16, 'b');

BOOST_AUTO_TEST_CASE(the_header_is_read_as_the_standard_has_it) {
  const auto context = parse_traceparent("00-" + kTrace + "-" + kParent + "-01");
  BOOST_REQUIRE(context.has_value());
  BOOST_TEST(context->trace_id == kTrace);
  BOOST_TEST(context->parent_id == kParent);
  BOOST_TEST(context->is_sampled);
  BOOST_TEST(!parse_traceparent("00-" + kTrace + "-" + kParent + "-02")->is_sampled);
  BOOST_TEST(parse_traceparent("cc-" + kTrace + "-" + kParent + "-03-more").has_value());
  for (const std::string& bad :
       {std::string(), "00-" + kTrace + "-" + kParent, "ff-" + kTrace + "-" + kParent + "-01",
        "00-" + std::string(32, '0') + "-" + kParent + "-01",
        "00-" + kTrace + "-" + std::string(16, '0') + "-01",
        "00-" + std::string(32, 'A') + "-" + kParent + "-01",
        "00-" + kTrace + "-" + kParent + "-01-more", "00_" + kTrace + "-" + kParent + "-01",
        "00-" + kTrace + "-" + kParent + "-0g"})
    BOOST_TEST(!parse_traceparent(bad).has_value(), bad);
}

BOOST_AUTO_TEST_CASE(ids_are_not_zero) {
  std::uint64_t next = 0;
  BOOST_TEST(random_hex(8, [&] { return next++; }) == "0100000000000000");
  BOOST_TEST(random_hex(16, [&] { return next++; }).size() == 32u);
}

BOOST_AUTO_TEST_CASE(spans_are_written_as_otlp_has_them) {
  const Span span{
      .context = {kTrace, kParent},
      .id = std::string(16, 'c'),
      .name = "POST /v1/x",
      .start = 1.5,
      .end = 2,
      .is_error = true,
      .attributes = {{"text", std::string("a\xff")}, {"count", std::int64_t{3}}, {"s", 0.25}}};
  BOOST_TEST(
      otlp_json({span}, "me", "1") ==
      R"({"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":)"
      R"("me"}},{"key":"service.version","value":{"stringValue":"1"}}]},"scopeSpans":[{"scope":)"
      R"({"name":"troupe","version":"1"},"spans":[{"attributes":[{"key":"text","value":)"
      "{\"stringValue\":\"a\xEF\xBF\xBD\"}},"
      R"({"key":"count","value":{"intValue":"3"}},{"key":"s","value":{"doubleValue":0.25}}],)"
      R"("endTimeUnixNano":"2000000000","kind":2,"name":"POST /v1/x","parentSpanId":)"
      R"("bbbbbbbbbbbbbbbb","spanId":"cccccccccccccccc","startTimeUnixNano":"1500000000",)"
      R"("status":{"code":2},"traceId":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}]}]}]})");
}

}  // namespace
}  // namespace troupe
