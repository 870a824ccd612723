// Which encoder an item goes to.

#include "runtime/processors/encoder_coordinator.hpp"

#include <boost/test/unit_test.hpp>
#include <map>
#include <set>

namespace troupe {
namespace {

using Encoder = EncoderCoordinator::Encoder;

const std::vector<Encoder> kThree = {{"encoder-0", 1}, {"encoder-1", 2}, {"encoder-2", 3}};

std::string image(int number) { return "image " + std::to_string(number); }

BOOST_AUTO_TEST_CASE(an_item_goes_where_its_output_is) {
  EncoderCoordinator coordinator;
  BOOST_TEST(!coordinator.choose("a").has_value());
  coordinator.set_encoders(kThree);
  const auto first = *coordinator.choose("a");
  BOOST_TEST(!first.has_output);
  const std::uint64_t other = first.encoder % 3 + 1;
  coordinator.sent(other);
  coordinator.answered(other, "a", /*has_output=*/true);
  BOOST_TEST(coordinator.choose("a")->encoder == other);
  BOOST_TEST(coordinator.choose("a")->has_output);
  BOOST_TEST(coordinator.candidates("a").front() == other);
  BOOST_TEST(coordinator.candidates("a").size() == 3u);
  // It has been evicted there.
  coordinator.sent(other);
  coordinator.answered(other, "a", /*has_output=*/false);
  BOOST_TEST(coordinator.choose("a")->encoder == first.encoder);
}

BOOST_AUTO_TEST_CASE(all_processes_choose_the_same_encoder_and_the_others_keep_theirs) {
  EncoderCoordinator one, another;
  one.set_encoders(kThree);
  // Numbers are of the process, and so is the order.
  another.set_encoders(std::vector<Encoder>{{"encoder-2", 9}, {"encoder-0", 7}, {"encoder-1", 8}});
  std::map<std::uint64_t, int> counts;
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t chosen = one.choose(image(i))->encoder;
    BOOST_TEST(another.choose(image(i))->encoder == chosen + 6);
    ++counts[chosen];
  }
  for (const auto& [encoder, count] : counts) BOOST_TEST(count > 60);
  another.set_encoders(std::vector<Encoder>{{"encoder-0", 7}, {"encoder-1", 8}});
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t before = one.choose(image(i))->encoder;
    if (before != 3) BOOST_TEST(another.choose(image(i))->encoder == before + 6);
  }
}

BOOST_AUTO_TEST_CASE(an_encoder_with_much_to_do_gives_way) {
  EncoderCoordinator coordinator;
  coordinator.set_encoders(kThree);
  const std::uint64_t first = coordinator.choose("a")->encoder;
  for (int i = 0; i < EncoderCoordinator::kMaxAhead; ++i) coordinator.sent(first);
  BOOST_TEST(coordinator.choose("a")->encoder != first);
  coordinator.answered(first, "b", /*has_output=*/true);
  BOOST_TEST(coordinator.choose("a")->encoder == first);
}

BOOST_AUTO_TEST_CASE(
    encoders_that_have_ended_on_an_item_are_not_tried_again_and_a_new_one_has_nothing) {
  EncoderCoordinator coordinator;
  coordinator.set_encoders(kThree);
  std::vector<std::uint64_t> tried;
  while (const auto choice = coordinator.choose("a", tried)) tried.push_back(choice->encoder);
  BOOST_TEST(std::set<std::uint64_t>(tried.begin(), tried.end()).size() == 3u);
  coordinator.sent(2);
  coordinator.answered(2, "a", /*has_output=*/true);
  coordinator.set_encoders(std::vector<Encoder>{{"encoder-0", 1}, {"encoder-1", 4}});
  BOOST_TEST(!coordinator.choose("a")->has_output);
  coordinator.answered(2, "a", /*has_output=*/true);  // too late
  BOOST_TEST(!coordinator.choose("a")->has_output);
}

}  // namespace
}  // namespace troupe
