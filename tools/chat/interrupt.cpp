#include "tools/chat/interrupt.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "runtime/base/check.hpp"

namespace troupe::tools {
namespace {

int write_end = -1;  // for the signal handler, which has no context argument

}  // namespace

Interrupt::Interrupt(bool terminal) {
  int ends[2];
  CHECK(pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0, errno);
  read_end_ = ends[0];
  write_end = ends[1];
  if (!terminal) return;
  struct sigaction action {};
  action.sa_handler = [](int) {
    const int error = errno;
    const char byte = 0;
    // If the pipe is full, the interrupt is already pending.
    [[maybe_unused]] const ssize_t written = write(write_end, &byte, 1);
    errno = error;
  };
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

Interrupt::~Interrupt() {
  std::signal(SIGINT, SIG_DFL);
  close(read_end_);
  close(write_end);
}

bool Interrupt::take() {
  char bytes[64];
  bool came = false;
  while (read(read_end_, bytes, sizeof bytes) > 0) came = true;
  return came;
}

}  // namespace troupe::tools
