#pragma once
// Locks of whole files between processes.

#include <sys/file.h>

#include <cerrno>

#include "runtime/base/file_descriptor.hpp"

namespace troupe {

/// flock(2), repeated if a signal interrupts it. `operation`: LOCK_SH, LOCK_EX or LOCK_UN, with
/// LOCK_NB to return at once. The lock ends with the process at the latest. On failure returns
/// false and sets errno: EWOULDBLOCK if another process has the lock.
inline bool lock_file(const FileDescriptor& file, int operation) {
  int result = 0;
  do {
    result = ::flock(file.get(), operation);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

}  // namespace troupe
