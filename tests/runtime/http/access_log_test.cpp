#include "runtime/http/access_log.hpp"

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

const HttpObservation kObservation = {
    .method = "POST", .path = "/v1/\"completions", .status = 200, .start = 10, .end = 10.25};
constexpr double kNoon = 1769860800;  // 2026-01-31T12:00:00Z

std::string text_of(const fs::path& file) {
  std::ifstream input(file);
  return {std::istreambuf_iterator<char>(input), {}};
}

BOOST_AUTO_TEST_CASE(a_request_is_one_object) {
  const WorkDone work{.id = "cmpl-1",
                      .num_prompt_tokens = 3,
                      .num_output_tokens = 4,
                      .queue_s = 0.0005,
                      .first_token_s = 0.125};
  BOOST_TEST(access_json(kObservation, work, "127.0.0.1:1", "mine", kNoon + 0.5) ==
             R"({"time":"2026-01-31T12:00:00.500Z","client":"127.0.0.1:1","key":"mine",)"
             R"("request_id":"cmpl-1","method":"POST","path":"/v1/\"completions","status":200,)"
             R"("duration_ms":250.000,"prompt_tokens":3,"output_tokens":4,"queue_ms":0.500,)"
             R"("ttft_ms":125.000})");
  const auto alone = nlohmann::json::parse(access_json(kObservation, {}, "", "", kNoon));
  BOOST_TEST(alone["request_id"].is_null());
  BOOST_TEST(!alone.contains("prompt_tokens"));
}

BOOST_AUTO_TEST_CASE(lines_are_whole_and_go_on_in_a_new_file_when_the_old_one_is_renamed) {
  std::string folder = (fs::temp_directory_path() / "troupe-access-XXXXXX").string();
  BOOST_REQUIRE(mkdtemp(folder.data()) != nullptr);
  const fs::path file = fs::path(folder) / "access.jsonl", old = fs::path(folder) / "access.1";
  const auto log = AccessLog::open(file.string()).value();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 50; ++n) log->write(kObservation, {}, "a", "", kNoon);
    });
  for (std::thread& thread : threads) thread.join();
  fs::rename(file, old);
  log->write(kObservation, {}, "late", "", kNoon + 0.5);  // within the same second
  log->write(kObservation, {}, "later", "", kNoon + 2);
  std::ifstream lines(old);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count)
    BOOST_REQUIRE(nlohmann::json::accept(line));
  BOOST_TEST(count == 201);
  BOOST_TEST(text_of(file).find("\"client\":\"later\"") != std::string::npos);
  BOOST_TEST(AccessLog::open(folder + "/no/such").error().message ==
             "access-log: cannot open " + folder + "/no/such: No such file or directory");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace troupe
