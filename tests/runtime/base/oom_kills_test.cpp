#include "runtime/base/oom_kills.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <fstream>
#include <string>

#include "runtime/base/child_process.hpp"
#include "runtime/base/mapped_file.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

struct Counter {
  fs::path path = fs::temp_directory_path() / ("oom-kills-" + std::to_string(getpid()));
  explicit Counter(int count) { set(count); }
  ~Counter() { fs::remove(path); }
  void set(int count) const {
    std::ofstream(path) << "nr_free_pages 1234\noom_kill " << count << "\nthp_fault_alloc 5\n";
  }
};

BOOST_AUTO_TEST_CASE(each_kill_of_the_kernel_explains_one_end) {
  const Counter counter(3);
  OomKills kills(counter.path);
  BOOST_TEST(!kills.take());  // those of before are not ours
  counter.set(5);
  BOOST_TEST(kills.take());
  BOOST_TEST(kills.take());
  BOOST_TEST(!kills.take());
  OomKills none("/proc/no such file");
  BOOST_TEST(!none.take());
}

BOOST_AUTO_TEST_CASE(
    who_is_killed_for_lack_of_memory_has_crashed_and_who_is_killed_by_hand_has_not) {
  using Kind = ProcessEnd::Kind;
  const Counter counter(0);
  OomKills kills(counter.path);
  BOOST_TEST((describe_end(SIGKILL, kills).kind == Kind::kKilled));
  counter.set(1);
  BOOST_TEST((describe_end(SIGTERM, kills).kind == Kind::kEnded));  // not the one
  const ProcessEnd end = describe_end(SIGKILL, kills);
  BOOST_TEST((end.kind == Kind::kCrashed));
  BOOST_TEST(end.text == "killed by the kernel for lack of memory");
  BOOST_TEST((describe_end(SIGKILL, kills).kind == Kind::kKilled));
}

BOOST_AUTO_TEST_CASE(a_process_that_loses_a_file_is_not_killed) {
  OomKills kills("/proc/no such file");
  const ProcessEnd end = describe_end(kMappedFileLostStatus << 8, kills);
  BOOST_TEST((end.kind == ProcessEnd::Kind::kEnded));
  BOOST_TEST(end.text.find("a mapped file") != std::string::npos);
}

}  // namespace
}  // namespace troupe
