#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "runtime/http/response_store.hpp"

namespace troupe {
namespace {

const StoredResponse kStored{.response = "{}", .input = "[]", .messages = {}};
const ResponseRun kRun{.owner = "o",
                       .key = "k",
                       .engine = "e",
                       .body = "b",
                       .philox_key = ~0ull,
                       .arrival_time = 12.5};

std::string event(int number) { return "data: " + std::to_string(number) + "\n\n"; }

struct StoreFixture {
  std::unique_ptr<ResponseStore> store = std::move(ResponseStore::open("", {})).value();

  std::string begin(const std::string& id) {
    return std::move(store->begin(id, kStored, kRun, {.events = event(0) + event(1)})).value();
  }
  std::string events(std::int64_t after, std::size_t max_bytes = 1000) {
    const auto found = store->events("a", "o", after, max_bytes);
    return found.ok() ? found->text : found.error().message;
  }
};

BOOST_FIXTURE_TEST_SUITE(response_store, StoreFixture)

BOOST_AUTO_TEST_CASE(events_are_read_behind_any_of_them) {
  const std::string token = begin("a");
  BOOST_TEST(store->append("a", token, {.events = event(2) + event(3) + event(4)}).ok());
  BOOST_TEST(events(-1) == event(0) + event(1) + event(2) + event(3) + event(4));
  BOOST_TEST(events(0) == event(1) + event(2) + event(3) + event(4));
  BOOST_TEST(events(2) == event(3) + event(4));
  BOOST_TEST(events(4).empty());
  BOOST_TEST(events(9).empty());
  BOOST_TEST(events(-1, 1) == event(0) + event(1));
  BOOST_TEST(!store->events("a", "o", 4, 1000)->is_complete);
  BOOST_TEST(!store->events("a", "stranger", -1, 1000).ok());
  BOOST_TEST(
      store->append("a", token, {.events = event(5), .response = "{1}", .is_final = true}).ok());
  BOOST_TEST(store->events("a", "o", 4, 1000)->is_complete);
  BOOST_TEST(store->get("a", "o")->response == "{1}");
  BOOST_TEST(!store->append("a", token, {.events = event(6)}).ok());
}

BOOST_AUTO_TEST_CASE(only_who_has_claimed_a_response_adds_to_it) {
  const std::string first = begin("a");
  BOOST_TEST(!store->claim("a", /*by_force=*/false)->has_value());  // this process lives
  const auto claimed = store->claim("a", /*by_force=*/true);
  BOOST_REQUIRE(claimed->has_value());
  BOOST_TEST((*claimed)->num_events == 2);
  BOOST_TEST((*claimed)->run.philox_key == kRun.philox_key);
  BOOST_TEST((*claimed)->run.arrival_time == kRun.arrival_time);
  BOOST_TEST(!store->append("a", first, {.events = event(2)}).ok());
  BOOST_TEST(store->append("a", (*claimed)->token, {.events = event(2), .position = "1.1"}).ok());
  BOOST_TEST(store->release("a", (*claimed)->token).ok());
  const auto again = store->claim("a", /*by_force=*/false);
  BOOST_REQUIRE(again->has_value());
  BOOST_TEST((*again)->position == "1.1");
  BOOST_TEST((*again)->num_events == 3);
}

BOOST_AUTO_TEST_CASE(watchers_hear_of_what_is_appended_and_removed) {
  const std::string token = begin("a");
  int num_calls = 0;
  const std::uint64_t number = store->watch("a", [&] { ++num_calls; });
  BOOST_TEST(store->append("a", token, {.events = event(2)}).ok());
  const std::string other = begin("b");
  BOOST_TEST(store->append("b", other, {.events = event(2)}).ok());
  BOOST_TEST(num_calls == 1);
  BOOST_TEST(store->remove("a", "o").ok());
  BOOST_TEST(num_calls == 2);
  BOOST_TEST(!store->append("a", token, {.events = event(3)}).ok());
  store->unwatch(number);
}

BOOST_AUTO_TEST_CASE(what_is_in_progress_makes_room_last) {
  store = std::move(ResponseStore::open("", {.max_responses = 2})).value();
  begin("a");
  BOOST_TEST(store->put("x", "o", kStored).ok());
  BOOST_TEST(store->put("y", "o", kStored).ok());
  BOOST_TEST(store->get("a", "o").ok());
  BOOST_TEST(!store->get("x", "o").ok());
  begin("b");
  const auto refused = store->begin("c", kStored, kRun, {.events = event(0)});
  BOOST_TEST(store->get("b", "o").ok());
  BOOST_TEST(refused.ok());  // the oldest one ends instead
  BOOST_TEST(!store->get("a", "o").ok());
}

BOOST_AUTO_TEST_CASE(a_file_of_an_ended_process_is_claimed_and_one_of_version_1_is_read) {
  std::string folder = (std::filesystem::temp_directory_path() / "responses.XXXXXX").string();
  BOOST_REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::string file = folder + "/responses.db";
  {
    SqliteDatabase old;
    BOOST_REQUIRE(old.open(file, file).ok());
    BOOST_REQUIRE(old.run("CREATE TABLE responses (number INTEGER PRIMARY KEY, id TEXT NOT NULL, "
                          "owner TEXT NOT NULL, size INTEGER NOT NULL, response TEXT NOT NULL, "
                          "input TEXT NOT NULL, messages TEXT NOT NULL);"
                          "CREATE UNIQUE INDEX by_id ON responses (id);"
                          "INSERT INTO responses (id, owner, size, response, input, messages) "
                          "VALUES ('old', 'o', 4, '{}', '[]', '');"
                          "PRAGMA user_version=1")
                      .ok());
  }
  store = std::move(ResponseStore::open(file, {})).value();
  BOOST_TEST(store->get("old", "o").ok());
  BOOST_TEST(!store->events("old", "o", -1, 1).ok());
  begin("a");
  BOOST_TEST(store->abandoned()->empty());
  {
    SqliteDatabase other;
    BOOST_REQUIRE(other.open(file, file).ok());
    BOOST_REQUIRE(other.run("UPDATE runs SET token = '1 0 0'").ok());  // another start of process 1
  }
  BOOST_TEST(store->abandoned().value() == std::vector<std::string>{"a"});
  BOOST_TEST(store->claim("a", /*by_force=*/false)->has_value());
  store.reset();
  std::filesystem::remove_all(folder);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
