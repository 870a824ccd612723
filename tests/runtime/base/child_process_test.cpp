#include "runtime/base/child_process.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <future>

namespace troupe {
namespace {

struct Started {
  std::promise<ProcessEnd> end;
  Result<std::unique_ptr<ChildProcess>> process;
  explicit Started(const std::vector<std::string>& arguments)
      : process(ChildProcess::start(arguments,
                                    [this](ProcessEnd how) { end.set_value(std::move(how)); })) {
    BOOST_REQUIRE(process.ok());
  }
};

BOOST_AUTO_TEST_CASE(an_exit_code_is_reported) {
  Started child({"/bin/sh", "-c", "exit 3"});
  const ProcessEnd end = child.end.get_future().get();
  BOOST_TEST(end.text == "exit code 3");
  BOOST_TEST((end.kind == ProcessEnd::Kind::kKilled));
}

BOOST_AUTO_TEST_CASE(a_crash_is_distinguished_from_a_kill) {
  Started crash({"/bin/sh", "-c", "kill -SEGV $$"});
  const ProcessEnd crashed = crash.end.get_future().get();
  BOOST_TEST((crashed.kind == ProcessEnd::Kind::kCrashed));
  BOOST_TEST(crashed.text.starts_with("killed by signal 11"));
  Started kill({"/bin/sh", "-c", "kill -KILL $$"});
  BOOST_TEST((kill.end.get_future().get().kind == ProcessEnd::Kind::kKilled));
  Started asked({"/bin/sh", "-c", "kill -TERM $$"});
  BOOST_TEST((asked.end.get_future().get().kind == ProcessEnd::Kind::kEnded));
}

BOOST_AUTO_TEST_CASE(a_stopped_process_can_be_killed) {
  Started child({"/bin/sleep", "1000"});
  ::kill((*child.process)->pid(), SIGSTOP);
  (*child.process)->kill();
  BOOST_TEST(child.end.get_future().get().text.starts_with("killed by signal 9"));
}

BOOST_AUTO_TEST_CASE(it_ends_with_its_owner) {
  pid_t pid = 0;
  {
    Started child({"/bin/sleep", "1000"});
    pid = (*child.process)->pid();
    BOOST_TEST(::kill(pid, 0) == 0);
  }
  BOOST_TEST(::kill(pid, 0) != 0);
}

/// The process that a shell, which has ended, leaves behind.
pid_t orphan() {
  int ends[2];
  BOOST_REQUIRE(pipe(ends) == 0);
  const pid_t middle = fork();
  if (middle == 0) {
    const pid_t pid = fork();
    if (pid == 0) {
      execl("/bin/sleep", "sleep", "1000", nullptr);
      _exit(1);
    }
    _exit(write(ends[1], &pid, sizeof pid) == sizeof pid ? 0 : 1);
  }
  waitpid(middle, nullptr, 0);
  pid_t pid = 0;
  BOOST_REQUIRE(read(ends[0], &pid, sizeof pid) == sizeof pid);
  close(ends[0]);
  close(ends[1]);
  return pid;
}

BOOST_AUTO_TEST_CASE(a_process_that_another_one_has_started_can_be_adopted) {
  std::promise<ProcessEnd> end;
  const pid_t pid = orphan();
  {
    const auto process =
        ChildProcess::adopt(pid, [&](ProcessEnd how) { end.set_value(std::move(how)); });
    BOOST_REQUIRE(process.ok());
    BOOST_TEST((*process)->pid() == pid);
    (*process)->kill();
    BOOST_TEST((end.get_future().get().kind == ProcessEnd::Kind::kKilled));
  }
  BOOST_TEST(!ChildProcess::adopt(1 << 30, [](const ProcessEnd&) {}).ok());
}

BOOST_AUTO_TEST_CASE(a_program_that_is_not_there_is_an_error) {
  const auto missing = ChildProcess::start({"/no/such/program"}, [](const ProcessEnd&) {});
  BOOST_REQUIRE(!missing.ok());
  BOOST_TEST(missing.error().message.find("/no/such/program") != std::string::npos);
}

}  // namespace
}  // namespace troupe
