// The EncoderRouter between an InputProcessor and encoders that end.
#include <boost/test/unit_test.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <map>
#include <set>

#include "actors/spawn.hpp"
#include "actors/system_config.hpp"

namespace troupe {
namespace {

struct RouterTestConfig : SystemConfig {
  RouterTestConfig() { set("scheduler.policy", caf::atom("testing")); }
};

struct FakeEncoder {
  EncoderActor actor;
  bool holds = false;  ///< it never answers
  std::set<std::string> outputs;
  std::vector<std::string> asked;  ///< "a!": with data
};

EncoderActor::behavior_type fake_encoder(EncoderActor::pointer self, FakeEncoder* fake) {
  return {
      [=](const EncodeItem& what) -> caf::result<ItemEncoded> {
        const std::string& identifier = what.item.identifier;
        fake->asked.push_back(identifier + (what.item.data == nullptr ? "" : "!"));
        if (fake->holds) return self->make_response_promise<ItemEncoded>();
        if (fake->outputs.contains(identifier)) return ItemEncoded{};
        if (what.item.data == nullptr) return ItemEncoded{.needs_data = true};
        if (identifier == "bad") return ItemEncoded{.error = invalid_argument("no image")};
        fake->outputs.insert(identifier);
        return ItemEncoded{};
      },
      [=](const FindEncoderOutput& what) -> caf::result<EncoderOutputFound> {
        if (fake->holds) return self->make_response_promise<EncoderOutputFound>();
        return EncoderOutputFound{.found = fake->outputs.contains(what.identifier)};
      },
  };
}

struct RouterFixture {
  RouterTestConfig config;
  caf::actor_system system{config};
  caf::scheduler::test_coordinator& coordinator =
      dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  std::map<std::string, FakeEncoder> fakes;
  EncoderRouterActor router = spawn_encoder_router(system);
  caf::scoped_actor self{system};

  ~RouterFixture() {
    for (auto& [name, fake] : fakes) caf::anon_send_exit(fake.actor, caf::exit_reason::kill);
    caf::anon_send_exit(router, caf::exit_reason::user_shutdown);
    coordinator.run();
  }
  void start(const std::vector<std::string>& names) {
    EncodersChanged changed;
    ActorHandles handles;
    for (const std::string& name : names) {
      FakeEncoder& fake = fakes[name];
      if (!fake.actor) fake.actor = system.spawn(fake_encoder, &fake);
      changed.names.push_back(name);
      handles.push_back(caf::actor_cast<caf::strong_actor_ptr>(fake.actor));
    }
    self->send(router, std::move(changed), std::move(handles));
    coordinator.run();
  }
  void kill(FakeEncoder& fake) {
    caf::anon_send_exit(fake.actor, caf::exit_reason::kill);
    coordinator.run();
  }
  void encode(const std::vector<std::string>& identifiers) {
    EncodeItems what;
    for (const std::string& identifier : identifiers)
      what.items.push_back({.modality = "image",
                            .identifier = identifier,
                            .data = std::make_shared<const std::vector<char>>(1)});
    self->send(router, std::move(what));
    coordinator.run();
  }
  bool answered() {
    bool is_there = false;
    if (self->has_next_message()) self->receive([&](const Status&) { is_there = true; });
    return is_there;
  }
  bool finds(const std::string& identifier) {
    self->send(router, FindEncoderOutput{.identifier = identifier});
    coordinator.run();
    bool found = false;
    if (self->has_next_message())
      self->receive([&](const EncoderOutputFound& output) { found = output.found; });
    return found;
  }
  /// Those who were asked for it.
  std::vector<std::string> askers(const std::string& identifier) {
    std::vector<std::string> names;
    for (const auto& [name, fake] : fakes)
      for (const std::string& asked : fake.asked)
        if (asked.substr(0, identifier.size()) == identifier) names.push_back(name);
    return names;
  }
};

BOOST_FIXTURE_TEST_CASE(an_item_is_sent_once_and_found_where_it_was_encoded, RouterFixture) {
  encode({"a"});
  BOOST_TEST(answered());  // there is no encoder: a worker does it
  start({"x", "y"});
  encode({"a", "b", "bad"});
  BOOST_TEST(answered());
  BOOST_REQUIRE_EQUAL(askers("a").size(), 1u);
  BOOST_TEST((finds("a") && finds("b") && !finds("bad")));
  // Again: without data, until it has been evicted there.
  FakeEncoder& owner = fakes.at(askers("a").front());
  owner.asked.clear();
  encode({"a"});
  BOOST_TEST((owner.asked == std::vector<std::string>{"a"}));
  owner.outputs.clear();
  encode({"a"});
  BOOST_TEST((owner.asked == std::vector<std::string>{"a", "a", "a!"}));
  BOOST_TEST((answered() && answered()));
}

BOOST_FIXTURE_TEST_CASE(what_an_encoder_had_goes_to_another_one_and_then_to_the_workers,
                        RouterFixture) {
  start({"x", "y", "z"});
  for (auto& [name, fake] : fakes) fake.holds = true;
  encode({"a"});
  BOOST_TEST(!answered());
  const std::string first = askers("a").at(0);
  kill(fakes.at(first));
  BOOST_REQUIRE_EQUAL(askers("a").size(), 2u);
  BOOST_TEST(!answered());
  for (const std::string& name : askers("a"))
    if (name != first) kill(fakes.at(name));
  // Two have ended on it.
  BOOST_TEST(answered());
  BOOST_TEST(askers("a").size() == 2u);
}

BOOST_FIXTURE_TEST_CASE(one_that_the_supervisor_does_not_list_is_not_waited_for, RouterFixture) {
  start({"x"});
  fakes.at("x").holds = true;
  encode({"a"});
  BOOST_TEST(!answered());
  start({});
  BOOST_TEST(answered());
  BOOST_TEST(!finds("a"));
}

}  // namespace
}  // namespace troupe
