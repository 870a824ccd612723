// The adapters that requests may name, and the replies of the ranks that load them.
#include "runtime/processors/adapter_registry.hpp"

#include <boost/test/unit_test.hpp>

namespace troupe {
namespace {

LoraRequest adapter(const std::string& name, std::int32_t id) {
  return {.name = name, .int_id = id, .path = "/adapters/" + name};
}

BOOST_AUTO_TEST_CASE(a_name_is_taken_until_it_is_removed_or_loaded_in_place) {
  AdapterRegistry registry;
  BOOST_TEST(registry.check_load({.name = "", .path = "x"}).has_value());
  static_cast<void>(registry.add(adapter("sql", 7)));
  BOOST_TEST(registry.check_load({.name = "sql", .path = "x"}).has_value());
  BOOST_TEST(!registry.check_load({.name = "sql", .path = "x", .load_inplace = true}));
  BOOST_REQUIRE(registry.find("sql") != nullptr);
  BOOST_TEST(registry.find("sql")->int_id == 7);
  BOOST_TEST(registry.remove("sql"));
  BOOST_TEST(!registry.remove("sql"));
  BOOST_TEST(!registry.check_load({.name = "sql", .path = "x"}));
}

BOOST_AUTO_TEST_CASE(other_weights_at_the_same_path_have_a_revision) {
  AdapterRegistry registry;
  BOOST_TEST(registry.add(adapter("sql", 7)).revision == 0);
  BOOST_TEST(registry.add(adapter("sql", 8)).revision == 8);
  BOOST_TEST(registry.add(adapter("sql", 7)).revision == 0);
}

BOOST_AUTO_TEST_CASE(a_new_engine_loads_what_it_lacks_and_unloads_what_was_removed) {
  AdapterRegistry registry;
  BOOST_TEST(!registry.known());
  static_cast<void>(registry.add(adapter("sql", 7)));
  static_cast<void>(registry.add(adapter("old", 1)));
  BOOST_TEST(registry.remove("old"));
  const auto difference = registry.match({adapter("old", 1), adapter("of-options", 2)});
  BOOST_REQUIRE(difference.to_load.size() == 1u);
  BOOST_TEST(difference.to_load[0].name == "sql");
  BOOST_TEST(difference.to_unload == std::vector<std::string>{"old"},
             boost::test_tools::per_element());
  BOOST_REQUIRE(registry.known().has_value());
  BOOST_TEST(registry.known()->adapters.size() == 2u);  // sql, and that of the engine's options
}

BOOST_AUTO_TEST_CASE(ranks_must_have_loaded_the_same_files) {
  CollectiveRpcReply reply{.results = {AdapterList{{adapter("sql", 7)}}, WorkerResult{},
                                       AdapterList{{adapter("sql", 7)}}},
                           .error = {}};
  AdapterReply joined = join_ranks(reply);
  BOOST_TEST(!joined.error);
  BOOST_REQUIRE(joined.adapters.size() == 1u);
  reply.results[2] = AdapterList{{adapter("sql", 8)}};
  joined = join_ranks(reply);
  BOOST_REQUIRE(joined.error.has_value());
  BOOST_TEST(joined.error->message == "ranks 0 and 2 have found different files of an adapter");
  reply.error = Error{ErrorCode::kTimeout, "rank 1 did not reply", ""};
  BOOST_TEST(join_ranks(reply).error->message == "rank 1 did not reply");
}

}  // namespace
}  // namespace troupe
