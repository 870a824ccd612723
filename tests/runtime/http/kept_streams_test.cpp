#include "runtime/http/kept_streams.hpp"

#include <sys/resource.h>
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
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
  [[nodiscard]] std::vector<std::string> own_files() const {
    std::vector<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator(folder.path)) {
      const std::string name = file.path().filename();
      if (name != ".troupe-streams") names.push_back(name);
    }
    return names;
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
             "no stream b; the last 3 are stored, 2000 bytes of them, for 10 s after their "
             "end");
}

BOOST_AUTO_TEST_CASE(finished_streams_expire_and_running_ones_stay) {
  run("a");
  run_and_end("b");
  now = 109;
  BOOST_TEST(has("b"));  // its TTL starts again
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

BOOST_AUTO_TEST_CASE(the_stream_that_ended_first_is_evicted) {
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

BOOST_AUTO_TEST_CASE(a_stream_without_room_is_rejected_with_the_limits) {
  for (const char* id : {"a", "b", "c"}) run(id);
  const Error full = streams->keep(stream_of("d"), now).error();
  BOOST_TEST((full.code == ErrorCode::kOverloaded));
  BOOST_TEST(full.message.ends_with("at most 3 streams and 2000 bytes are allowed"), full.message);
  streams->release("b", now);
  BOOST_TEST(!streams->keep(stream_of("d", 3000), now).ok());
  BOOST_TEST(streams->keep(stream_of("d"), now).ok());
  BOOST_TEST(streams->keep(stream_of("d"), now).error().message ==
             "a stream with the id d exists already");
  reopen({.max_streams = 1, .max_bytes = 2000, .ttl_s = 10});
  BOOST_TEST((has("a") + has("c") + has("d") == 1));
}

BOOST_AUTO_TEST_CASE(a_folder_is_for_one_server_and_one_user) {
  const auto again = KeptStreams::open(folder.path, {}, now);
  BOOST_TEST(again.error().message.find("in use by another server") != std::string::npos);
  streams.reset();
  chmod(folder.path.c_str(), 0755);
  BOOST_TEST(KeptStreams::open(folder.path, {}, now)
                 .error()
                 .message.ends_with("is accessible to other users"));
  BOOST_TEST(!KeptStreams::open(folder.path + "/no/such", {}, now).ok());
}

BOOST_AUTO_TEST_CASE(another_server_gets_the_folder_with_all_streams) {
  run("a");
  run_and_end("b");
  streams->hand_over();
  const auto before = std::exchange(streams, KeptStreams::open(folder.path, {}, now).value());
  BOOST_TEST(!before->keep(stream_of("c"), now).ok());
  BOOST_TEST(!before->resume("a", "m", 2, now).ok());
  before->release("a", now);
  before->expire(now + 1000);
  before->remove_all();
  BOOST_TEST((has("a") && has("b") && !has("c")));
}

BOOST_AUTO_TEST_CASE(files_that_are_damaged_are_no_streams_and_nothing_is_left_at_the_end) {
  run("a");
  const std::string name = own_files().at(0);
  std::filesystem::resize_file(folder.path + "/" + name, 20);
  std::ofstream(folder.path + "/" + name + ".new") << "unfinished";
  reopen();
  BOOST_TEST(own_files().size() == 1u);
  BOOST_TEST(!has("a"));
  streams->remove_all();
  BOOST_TEST(own_files().empty());
}

BOOST_AUTO_TEST_CASE(a_created_folder_is_removed_at_the_end_and_an_existing_one_stays) {
  const std::string made = folder.path + "/made";
  streams = KeptStreams::open(made, {}, now).value();
  run("a");
  streams.reset();
  streams = KeptStreams::open(made, {}, now).value();  // a life that did not make it
  BOOST_TEST(has("a"));
  streams->remove_all();
  BOOST_TEST(!std::filesystem::exists(made));

  reopen();
  run("a");
  streams->remove_all();
  BOOST_TEST(std::filesystem::exists(folder.path));
  reopen();  // it has the mark

  streams = KeptStreams::open(made, {}, now).value();
  std::ofstream(made + "/notes.txt") << "mine";
  streams->remove_all();
  BOOST_TEST(std::filesystem::exists(made + "/notes.txt"));
  streams.reset();
  BOOST_TEST(KeptStreams::open(made, {}, now).ok());
}

BOOST_AUTO_TEST_CASE(a_folder_with_other_files_is_refused_by_name_and_left_as_it_is) {
  const std::string home = folder.path + "/home";
  BOOST_REQUIRE(mkdir(home.c_str(), 0700) == 0);
  const std::vector<std::string> names = {"database.sqlite", "id_ed25519", "notes.txt", "x.new",
                                          "stream-00112233445566778899aabbccddeeff"};
  for (const std::string& name : names) std::ofstream(home + "/" + name) << "mine";
  const Error error = KeptStreams::open(home, {}, now).error();
  BOOST_TEST((error.code == ErrorCode::kInvalidArgument));
  BOOST_TEST(error.param == "resume-directory");
  BOOST_TEST(error.message ==
             "resume-directory " + home +
                 " has 'database.sqlite' but no .troupe-streams: it is not a server's folder, give "
                 "one that is empty or does not exist");
  for (const std::string& name : names) BOOST_TEST(std::filesystem::exists(home + "/" + name));
  BOOST_TEST(std::distance(std::filesystem::directory_iterator(home), {}) == 5);
}

BOOST_AUTO_TEST_CASE(files_of_other_names_are_never_touched) {
  run_and_end("a");
  const std::string own = own_files().at(0);
  const std::vector<std::string> names = {
      "id_ed25519", "notes.txt", "x.new",   "stream-1.new",
      own + ".bak", own + "0",   ".hidden", own.substr(0, 38) + "G",
      own.substr(7)};
  for (const std::string& name : names) std::ofstream(folder.path + "/" + name) << "mine";
  std::filesystem::create_directory(folder.path + "/stream-00112233445566778899aabbccddeeff");
  std::filesystem::create_symlink(folder.path + "/notes.txt",
                                  folder.path + "/stream-ff112233445566778899aabbccddeeff");
  reopen();
  now += 1000;
  streams->expire(now);
  BOOST_TEST(!has("a"));
  run_and_end("b", 1900);
  run_and_end("c", 1900);
  streams->remove_all();
  for (const std::string& name : names) {
    BOOST_TEST(std::filesystem::exists(folder.path + "/" + name), name);
  }
  BOOST_TEST(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 9 + 2 + 1);
}

BOOST_AUTO_TEST_CASE(a_failed_write_leaves_no_file_and_reports_the_reason) {
  // A limit of the process stands for a full disk.
  rlimit before{};
  BOOST_REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{200, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &full);
  const Result<void> kept = streams->keep(stream_of("a", 1000), now);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, ignored);
  BOOST_REQUIRE(!kept.ok());
  BOOST_TEST((kept.error().code == ErrorCode::kIo));
  BOOST_TEST(kept.error().message.starts_with("cannot write " + folder.path + "/stream-"));
  BOOST_TEST(kept.error().message.ends_with(".new: File too large"), kept.error().message);
  BOOST_TEST(own_files().empty());
  run("a", 1000);
  BOOST_TEST(has("a"));
}

BOOST_AUTO_TEST_CASE(an_id_that_is_kept_stays_with_its_stream) {
  run_and_end("a");
  KeptStream other = stream_of("a");
  other.tenant = 3;
  BOOST_TEST((streams->keep(other, now).error().code == ErrorCode::kOverloaded));
  BOOST_TEST(has("a"));
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
