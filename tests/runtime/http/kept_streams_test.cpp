#include "runtime/http/kept_streams.hpp"

#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

#include "runtime/http/stream_position.hpp"

namespace troupe {
namespace {

struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "troupe-kept-XXXXXX").string();
  Folder() { BOOST_REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
};

KeptStream stream_of(const std::string& id, std::size_t num_bytes = 10) {
  return {.id = id,
          .engine = "m",
          .path = "/v1/completions",
          .body = std::string(num_bytes, 'b'),
          .tenant = 2,
          .arrival_time = 1700000000.25,
          .philox_keys = {~std::uint64_t{0}, 7}};
}

struct Fixture {
  Folder folder;
  std::unique_ptr<KeptStreams> streams;
  double now = 100;

  Fixture() { reopen(); }
  void reopen(const KeptStreams::Limits& limits = {
                  .max_streams = 3, .max_bytes = 2000, .ttl_s = 10}) {
    streams.reset();  // as a process that ends without a word
    streams = KeptStreams::open(folder.path, limits, now).value();
  }
  void run(const std::string& id, std::size_t num_bytes = 10) {
    BOOST_REQUIRE(streams->keep(stream_of(id, num_bytes), now).ok());
  }
  void run_and_end(const std::string& id, std::size_t num_bytes = 10) {
    run(id, num_bytes);
    streams->release(id, now);
  }
  bool has(const std::string& id) {
    const bool found = streams->resume(id, "m", 2, now).ok();
    if (found) streams->release(id, now);
    return found;
  }
};

BOOST_FIXTURE_TEST_SUITE(kept_streams, Fixture)

BOOST_AUTO_TEST_CASE(a_stream_outlives_the_process_that_kept_it) {
  run("a");
  reopen();
  BOOST_TEST((streams->resume("a", "m", 2, now).value() == stream_of("a")));
}

BOOST_AUTO_TEST_CASE(a_stream_is_for_its_own_client_and_engine) {
  run("a");
  BOOST_TEST(!streams->resume("a", "m", 1, now).ok());
  BOOST_TEST(!streams->resume("a", "other", 2, now).ok());
  const auto unknown = streams->resume("b", "m", 2, now);
  BOOST_TEST((unknown.error().code == ErrorCode::kNotFound));
  BOOST_TEST(unknown.error().message ==
             "there is no stream b; the last 3 are kept, 2000 bytes of them, for 10 s after their "
             "end");
}

BOOST_AUTO_TEST_CASE(what_has_ended_goes_when_its_time_is_up_and_what_runs_stays) {
  run("a");
  run_and_end("b");
  now = 109;
  BOOST_TEST(has("b"));  // its time begins anew
  now = 118;
  BOOST_TEST(has("b"));
  now = 128;
  streams->expire(now);
  BOOST_TEST(!has("b"));
  BOOST_TEST(has("a"));
  now = 137;
  reopen();
  BOOST_TEST(has("a"));
}

BOOST_AUTO_TEST_CASE(the_one_that_ended_first_makes_room) {
  run("a");
  run_and_end("b");
  run_and_end("c");
  run_and_end("d");
  BOOST_TEST(has("a"));
  BOOST_TEST(!has("b"));
  BOOST_TEST(has("c"));
  run_and_end("e", 1850);
  BOOST_TEST((!has("c") && !has("d")));
}

BOOST_AUTO_TEST_CASE(who_finds_no_room_hears_the_limits) {
  for (const char* id : {"a", "b", "c"}) run(id);
  const Error full = streams->keep(stream_of("d"), now).error();
  BOOST_TEST((full.code == ErrorCode::kOverloaded));
  BOOST_TEST(full.message.ends_with("at most 3 streams and 2000 bytes are kept"), full.message);
  streams->release("b", now);
  BOOST_TEST(!streams->keep(stream_of("d", 3000), now).ok());
  BOOST_TEST(streams->keep(stream_of("d"), now).ok());
  BOOST_TEST(streams->keep(stream_of("d"), now).error().message == "a stream with the id d runs");
  reopen({.max_streams = 1, .max_bytes = 2000, .ttl_s = 10});
  BOOST_TEST((has("a") + has("c") + has("d") == 1));
}

BOOST_AUTO_TEST_CASE(a_folder_is_for_one_server_and_one_user) {
  const auto again = KeptStreams::open(folder.path, {}, now);
  BOOST_TEST(again.error().message.find("in use by another server") != std::string::npos);
  streams.reset();
  chmod(folder.path.c_str(), 0755);
  BOOST_TEST(
      KeptStreams::open(folder.path, {}, now).error().message.ends_with("is open to other users"));
  BOOST_TEST(!KeptStreams::open(folder.path + "/no/such", {}, now).ok());
}

BOOST_AUTO_TEST_CASE(files_that_are_damaged_are_no_streams_and_nothing_is_left_at_the_end) {
  run("a");
  for (const auto& file : std::filesystem::directory_iterator(folder.path))
    std::filesystem::resize_file(file.path(), 20);
  std::ofstream(folder.path + "/0123.new") << "unfinished";
  reopen();
  BOOST_TEST(!has("a"));
  streams->remove_all();
  BOOST_TEST(!std::filesystem::exists(folder.path));
}

BOOST_AUTO_TEST_CASE(positions_are_texts) {
  const StreamPosition position = {
      .samples = {{.num_tokens = 12, .num_bytes = 57, .begun = true},
                  {},
                  {.num_tokens = 40, .num_bytes = 131, .begun = true, .finished = true}},
      .has_usage = true};
  BOOST_TEST(to_text(position) == "12.57_-_40.131eu");
  BOOST_TEST((parse_stream_position("12.57_-_40.131eu", 3).value() == position));
  BOOST_TEST((parse_stream_position("", 2).value().samples.size() == 2u));
  for (const char* text : {"1.2", "1.2_3.4_5.6_-", "1.2_3.4_", "1.2_3.4_x", "1.2_3._-", "_-_-",
                           "-1.2_-_-", "1.2_99999999999999999999.1_-", "1.2 _-_-"}) {
    BOOST_TEST(!parse_stream_position(text, 3).ok(), text);
  }
  BOOST_TEST(parse_stream_position("x", 1).error().message ==
             "starting_after is \"x\", it must be the id of an event of this stream, which has 1 "
             "samples");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
