#include "runtime/transport/supervisor_file.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>

namespace troupe {
namespace {

/// A private folder of its own, and a process that can be ended.
struct Fixture {
  std::filesystem::path folder;
  ProcessId other;

  Fixture() {
    std::string name = (std::filesystem::temp_directory_path() / "supervisor-XXXXXX").string();
    BOOST_REQUIRE(mkdtemp(name.data()) != nullptr);
    folder = name;
    setenv("XDG_RUNTIME_DIR", name.c_str(), 1);
    const pid_t pid = fork();
    if (pid == 0) {
      pause();
      _exit(0);
    }
    other = ProcessId::of(pid).value();
  }
  ~Fixture() {
    end_other();
    unsetenv("XDG_RUNTIME_DIR");
    std::filesystem::remove_all(folder);
  }
  void end_other() {
    kill(other.pid, SIGKILL);
    waitpid(other.pid, nullptr, 0);
  }
  [[nodiscard]] static ProcessId dead() {
    ProcessId process = ProcessId::of(getpid()).value();
    ++process.started;  // the number is another's by now
    return process;
  }
  [[nodiscard]] SupervisorRecord record() const {
    return {.identity = "abc",
            .process = dead(),
            .epoch = 3,
            .port = 7700,
            .http_port = 8000,
            .nodes = {{"worker 0", other}, {"front", dead()}}};
  }
};

BOOST_FIXTURE_TEST_CASE(a_record_is_read_as_it_was_written, Fixture) {
  const auto read = SupervisorRecord::decode(record().encode());
  BOOST_REQUIRE(read.has_value());
  BOOST_TEST(read->encode() == record().encode());
  BOOST_TEST((read->nodes == record().nodes));
  BOOST_TEST(!SupervisorRecord::decode("").has_value());
  BOOST_TEST(!SupervisorRecord::decode("a secret").has_value());
  BOOST_TEST(!SupervisorRecord::decode("identity a\nsupervisor x y\n").has_value());
}

BOOST_FIXTURE_TEST_CASE(a_process_that_has_ended_is_told_from_another_of_its_number, Fixture) {
  BOOST_TEST(other.is_alive());
  BOOST_TEST(!dead().is_alive());
  kill(other.pid, SIGKILL);
  waitid(P_PID, static_cast<id_t>(other.pid), nullptr, WEXITED | WNOWAIT);
  BOOST_TEST(!other.is_alive());  // a zombie
}

BOOST_FIXTURE_TEST_CASE(what_a_dead_supervisor_has_left_is_found_while_something_of_it_runs,
                        Fixture) {
  BOOST_TEST(!SupervisorFile::find_dead("abc", 0).has_value());
  {
    const auto file = SupervisorFile::create(record());
    BOOST_REQUIRE(file.ok());
    const auto found = SupervisorFile::find_dead("abc", 0);
    BOOST_REQUIRE(found.has_value());
    BOOST_TEST(found->epoch == 3u);
    BOOST_REQUIRE_EQUAL(found->nodes.size(), 1u);
    BOOST_TEST(found->nodes[0].first == "worker 0");
    BOOST_TEST(SupervisorFile::find_dead("abc", 7700).has_value());
    BOOST_TEST(!SupervisorFile::find_dead("abc", 7701).has_value());
    BOOST_TEST(!SupervisorFile::find_dead("another", 0).has_value());

    SupervisorRecord alive = record();
    alive.process = ProcessId::of(getpid()).value();
    BOOST_REQUIRE(file->write(alive).ok());
    BOOST_TEST(!SupervisorFile::find_dead("abc", 0).has_value());
    BOOST_REQUIRE(file->write(record()).ok());
    end_other();
    BOOST_TEST(!SupervisorFile::find_dead("abc", 0).has_value());
    BOOST_TEST(std::filesystem::is_empty(folder / "troupe"));
  }
}

BOOST_FIXTURE_TEST_CASE(an_orderly_end_leaves_nothing, Fixture) {
  { BOOST_REQUIRE(SupervisorFile::create(record()).ok()); }
  BOOST_TEST(std::filesystem::is_empty(folder / "troupe"));
}

}  // namespace
}  // namespace troupe
