#include "messages/schema.hpp"

#include <boost/test/unit_test.hpp>

#include "messages/ids.hpp"
#include "messages/model_runner_output.hpp"
#include "messages/scheduler_output.hpp"

namespace troupe {
namespace {

struct Inner {
  std::optional<float> score;
};
TROUPE_MESSAGE(Inner, score)

struct Outer {
  RequestId id{};
  bool last = false;
  std::vector<Inner> parts;
  std::map<std::string, std::pair<std::int32_t, std::uint8_t>> sizes;
  std::variant<std::monostate, std::string> text;
  std::array<std::int64_t, 2> both{};
  std::shared_ptr<const std::vector<char>> data;
};
TROUPE_MESSAGE(Outer, id, last, parts, sizes, text, both, data)

struct Renamed {
  std::optional<float> value;
};
TROUPE_MESSAGE(Renamed, value)

BOOST_AUTO_TEST_CASE(a_schema_names_every_field_and_its_type) {
  BOOST_TEST(schema_text<Outer>() ==
             "({id:e8last:b1parts:[{score:?f4}]sizes:<s(i4u1)>text:|(-s)both:2[i8]data:?[i1]})");
}

BOOST_AUTO_TEST_CASE(another_name_or_order_is_another_schema) {
  BOOST_TEST(schema_text<Inner>() != schema_text<Renamed>());
  BOOST_TEST((schema_text<Inner, Outer>() != schema_text<Outer, Inner>()));
}

BOOST_AUTO_TEST_CASE(the_messages_of_a_step_have_schemas) {
  const std::string text = schema_text<SchedulerOutput, ModelRunnerOutput>();
  BOOST_TEST(text.find("new_requests:[{id:e8token_ids:[i4]") != std::string::npos);
  BOOST_TEST(text.find("logprobs:[f4]") != std::string::npos);
}

}  // namespace
}  // namespace troupe
