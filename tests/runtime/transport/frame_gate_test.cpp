#include "runtime/transport/frame_gate.hpp"

#include <boost/test/unit_test.hpp>
#include <vector>

#include "tests/support/basp_frames.hpp"

namespace troupe {
namespace {

using Side = Session::Side;

const std::string kClientHello = frame_of({.operation = 1}, node_of(kPeer));
const std::string kServerHello =
    frame_of({.operation = 0, .data = 3}, node_of(kPeer) + std::string("\1\3abc", 5) +
                                              number_of(9, 8) + std::string("\1\3def", 5));
constexpr std::string_view kStepTypes = "+Step+Actors";
constexpr std::uint64_t kAnswer = std::uint64_t{1} << 63;

std::string step_values() {
  return number_of(3, 4) + "abc" + number_of(2, 1) + handle_of(5, kPeer) + handle_of(0, kPeer);
}

/// The gate's error for these bytes; empty: they pass.
std::string verdict(const std::string& bytes, Side side = Side::kAccepts) {
  std::string error;
  for (const std::size_t piece : {std::size_t{1}, std::size_t{33}, bytes.size() + 1}) {
    const Passed passed = pass(bytes, side, piece);
    error = passed.error;
    if (error.empty()) BOOST_TEST((passed.frames == bytes), "in pieces of " << piece);
  }
  return error;
}

/// The same of a frame behind the handshake.
std::string verdict_of(const FrameFields& fields, const std::string& payload = "") {
  return verdict(kClientHello + frame_of(fields, payload));
}

std::string verdict_of_message(std::string_view types, const std::string& values) {
  return verdict_of({.operation = 2, .source = 4, .destination = 5}, message_of(types, values));
}

BOOST_AUTO_TEST_SUITE(frame_gate)

BOOST_AUTO_TEST_CASE(messages_between_nodes_pass) {
  const std::string exit = handle_of(7, kPeer) + error_of(2);
  const std::vector<std::string> frames = {
      frame_of({.operation = 1, .flags = 2}, node_of(kPeer)),
      frame_of({.operation = 2, .data = 1, .source = 4, .destination = 5},
               message_of(kStepTypes, step_values())),
      frame_of({.operation = 2, .destination = 5}, message_of("+@exit", exit)),
      frame_of({.operation = 2, .data = kAnswer, .destination = 5}, message_of("", "")),
      frame_of({.operation = 2, .data = kAnswer | 7, .destination = 5},
               message_of("+@error", error_of(3))),
      frame_of(
          {.operation = 2, .flags = 1, .source = 2, .destination = 900},
          message_of("+@atom+@atom+@str", number_of(901, 8) + number_of(902, 8) + text_of("info"))),
      frame_of(
          {.operation = 2, .source = 2, .destination = 6},
          message_of("+@atom+@str+@strong_actor_ptr+@str",
                     number_of(903, 8) + text_of("info") + handle_of(3, kPeer) + text_of("x"))),
      frame_of({.operation = 4, .destination = 5}, node_of(kPeer) + node_of(kSelf)),
      frame_of({.operation = 5, .source = 5}, node_of(kPeer) + node_of(kSelf) + error_of(1)),
      frame_of({.operation = 6}),
  };
  std::string all;
  for (const std::string& frame : frames) {
    BOOST_TEST(verdict(kClientHello + frame) == "");
    if (frame[0] != 1) BOOST_TEST(verdict(kServerHello + frame, Side::kConnects) == "");
    all += frame;
  }
  BOOST_TEST(verdict(kClientHello + all) == "");
}

BOOST_AUTO_TEST_CASE(a_frame_that_is_cut_anywhere_waits_for_the_rest) {
  const std::string frame = kClientHello + frame_of({.operation = 2, .destination = 5},
                                                    message_of(kStepTypes, step_values()));
  for (std::size_t size = 0; size < frame.size(); ++size) {
    const Passed passed = pass(frame.substr(0, size), Side::kAccepts, size + 1);
    BOOST_TEST(passed.error == "");
    BOOST_TEST(passed.frames.size() == (size < kClientHello.size() ? 0 : kClientHello.size()));
  }
}

BOOST_AUTO_TEST_CASE(a_length_takes_no_memory_before_the_bytes_come) {
  BOOST_TEST(verdict_of({.operation = 2, .destination = 5, .announced = (1LL << 31) - 1}) ==
             "malformed frame: a length of 2147483647");
  const std::string head =
      kClientHello + frame_of({.operation = 2, .destination = 5, .announced = 1 << 30});
  const auto session = std::make_shared<Pieces>(head, head.size());
  FrameGate gate(session, FrameCheck(small_vocabulary(), Side::kAccepts));
  std::string all(head.size(), '\0');
  BOOST_TEST(gate.read(all).value() == kClientHello.size());  // and not the header
  BOOST_TEST(gate.num_ready() == 0u);
}

BOOST_AUTO_TEST_CASE(the_handshake_comes_first_once_and_from_the_right_side) {
  const std::string beat = frame_of({.operation = 6});
  BOOST_TEST(verdict(beat) == "malformed frame: no preceding handshake");
  BOOST_TEST(verdict(beat, Side::kConnects) == "malformed frame: no preceding handshake");
  BOOST_TEST(verdict(kServerHello) == "malformed frame: a handshake of the wrong side");
  BOOST_TEST(verdict(kClientHello, Side::kConnects) ==
             "malformed frame: a handshake of the wrong side");
  BOOST_TEST(verdict(kServerHello + kServerHello, Side::kConnects) ==
             "malformed frame: a second handshake");
  // The 32 bytes of a handshake without content.
  const std::string forged = std::string(8, '\0') + std::string(8, '\xff') + std::string(8, '\0') +
                             std::string("\x80\0\0\0\0\0\0\0", 8);
  BOOST_TEST(verdict(forged) != "");
  BOOST_TEST(verdict(forged, Side::kConnects) != "");
  for (const auto& payload :
       {std::string(), node_of('\0'), node_of(kSelf), node_of(kPeer) + "x", std::string(32, 'x')}) {
    BOOST_TEST(verdict(frame_of({.operation = 1}, payload)) != "");
  }
  BOOST_TEST(verdict_of({.operation = 1}, node_of('o')) ==
             "malformed frame: from a different node");
  for (std::size_t size = 0; size < kServerHello.size() - kFrameHeaderBytes; ++size) {
    const std::string cut = kServerHello.substr(kFrameHeaderBytes, size);
    BOOST_TEST(verdict(frame_of({.operation = 0, .data = 3}, cut), Side::kConnects) != "");
  }
  BOOST_TEST(verdict(frame_of({.operation = 0, .data = 4}, kServerHello.substr(kFrameHeaderBytes)),
                     Side::kConnects) == "malformed frame: version 4");
}

BOOST_AUTO_TEST_CASE(headers_that_cannot_be_end_the_connection) {
  const std::string message = message_of(kStepTypes, step_values());
  BOOST_TEST(verdict_of({.operation = 7}, message) == "malformed frame: type 7");
  BOOST_TEST(verdict_of({.operation = 255}, message) == "malformed frame: type 255");
  BOOST_TEST(
      verdict_of({.operation = 3, .destination = 5}, node_of(kPeer) + node_of(kSelf) + message) ==
      "malformed frame: a forwarded message");
  BOOST_TEST(verdict_of({.operation = 2, .flags = 4, .destination = 5}, message) ==
             "malformed frame: flags 4");
  BOOST_TEST(verdict_of({.operation = 2}, message) == "malformed frame: an invalid actor");
  BOOST_TEST(verdict_of({.operation = 2, .flags = 1, .destination = 5}, message) ==
             "malformed frame: a message to an actor by its name");
  BOOST_TEST(verdict_of({.operation = 6}, "x") == "malformed frame: a length of 1");
  BOOST_TEST(verdict_of({.operation = 6, .data = 1}) != "");
  BOOST_TEST(verdict_of({.operation = 2, .destination = 5}) == "malformed frame: a length of 0");
  BOOST_TEST(verdict_of({.operation = 4, .destination = 5}, node_of(kPeer)) != "");
  BOOST_TEST(
      verdict_of({.operation = 4, .destination = 5}, node_of(kPeer) + std::string(32, 'x')) ==
      "malformed frame: to an invalid node");
  BOOST_TEST(
      verdict_of({.operation = 5, .source = 5}, node_of('o') + node_of(kSelf) + error_of(1)) ==
      "malformed frame: from a different node");
}

// While a node ends, CAF may send to its neighbours what is for it: that must not end the others'
// connections.
BOOST_AUTO_TEST_CASE(frames_for_a_third_node_are_dropped) {
  const std::string other = node_of(kPeer) + node_of('o');
  const std::string beat = frame_of({.operation = 6});
  const std::string mine =
      frame_of({.operation = 4, .destination = 5}, node_of(kPeer) + node_of(kSelf));
  const std::string all = kClientHello + beat +
                          frame_of({.operation = 4, .destination = 5}, other) + mine +
                          frame_of({.operation = 5, .source = 5}, other + error_of(1)) +
                          frame_of({.operation = 3, .destination = 5}, other + "anything") + beat;
  for (const std::size_t step : {std::size_t{1}, std::size_t{40}, all.size()}) {
    const Passed passed = pass(all, Side::kAccepts, step);
    BOOST_TEST(passed.error == "");
    BOOST_TEST((passed.frames == kClientHello + beat + mine + beat));
  }
}

BOOST_AUTO_TEST_CASE(messages_consist_of_known_types_and_are_whole) {
  const std::string values = step_values();
  for (std::size_t size = 0; size < values.size(); ++size)
    BOOST_TEST(verdict_of_message(kStepTypes, values.substr(0, size)) != "");
  BOOST_TEST(verdict_of_message(kStepTypes, values + "x") != "");
  BOOST_TEST(verdict_of_message("+Unknown", number_of(0, 4)) ==
             "malformed frame: a message with an invalid 'Unknown'");
  BOOST_TEST(verdict_of_message("+Step", number_of(0xffffffff, 4)) != "");
  BOOST_TEST(verdict_of_message("+Actors", std::string("\xff\xff\xff\xff\x0f", 5)) != "");
  BOOST_TEST(verdict_of_message("+Actors", std::string(100, '\xff')) != "");
  BOOST_TEST(verdict_of_message("Step", "") != "");
  BOOST_TEST(verdict_of_message("+", "") != "");
  BOOST_TEST(verdict_of_message("++Step", "") != "");
  // Floats: CAF reads for ever at an infinite one.
  BOOST_TEST(verdict_of_message("+float", number_of(0x7f800000, 4)) != "");
  // CAF takes whatever actor stands here for one of another node, without a look.
  BOOST_TEST(verdict_of_message("+@atom+@strong_actor_ptr",
                                number_of(901, 8) + handle_of(5, kSelf)) != "");
  // What would make a node start actors, or forward its work.
  BOOST_TEST(verdict_of_message("+@atom+@atom+@str",
                                number_of(901, 8) + number_of(902, 8) + text_of("info")) != "");
  BOOST_TEST(verdict_of({.operation = 2, .destination = 5},
                        number_of(1, 1) + handle_of(3, kPeer) + message_of("", "").substr(1)) ==
             "malformed frame: a message with forwarding actors");
  // CAF ends an actor that receives an unexpected error.
  BOOST_TEST(verdict_of_message("+@error", error_of(3)) ==
             "malformed frame: an unsolicited message '+@error'");
  BOOST_TEST(verdict_of_message("", "") == "malformed frame: an unsolicited message ''");
  BOOST_TEST(verdict_of_message("+@unit", "") ==
             "malformed frame: an unsolicited message '+@unit'");
  // An error in an error in an error ...
  std::string deep = error_of(1);
  for (int i = 0; i < 20; ++i) {
    deep = number_of(1, 1) + number_of(5, 8) + number_of(0, 2) + text_of("@<>+@error") + deep;
  }
  BOOST_TEST(verdict_of({.operation = 2, .data = kAnswer, .destination = 5},
                        message_of("+@error", deep)) ==
             "malformed frame: a message with an invalid '@error'");
}

BOOST_AUTO_TEST_CASE(a_node_can_reject_exit_messages_of_other_nodes) {
  const std::string frame = frame_of({.operation = 2, .destination = 5},
                                     message_of("+@exit", handle_of(7, kPeer) + error_of(2)));
  BOOST_TEST(verdict(kClientHello + frame) == "");
  auto vocabulary = *small_vocabulary();
  vocabulary.may_be_ended = false;
  FrameCheck check(std::make_shared<const FrameVocabulary>(vocabulary), Side::kAccepts);
  const std::string all = kClientHello + frame;
  FrameGate gate(std::make_shared<Pieces>(all, all.size()), std::move(check));
  std::string buffer(all.size(), '\0');
  BOOST_TEST(!gate.read(buffer).has_value());
  BOOST_TEST(gate.error() == "malformed frame: an unsolicited message '+@exit'");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
