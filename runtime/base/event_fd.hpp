#pragma once

#include <sys/eventfd.h>

#include <cerrno>

#include "runtime/base/check.hpp"
#include "runtime/base/file_descriptor.hpp"

namespace troupe {

/// Wakes a thread that polls file descriptors (eventfd): readable from signal() until clear().
/// Any thread may call any of them.
class EventFd {
 public:
  EventFd() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    CHECK(descriptor_.valid(), errno);
  }
  [[nodiscard]] int get() const noexcept { return descriptor_.get(); }
  void signal() const noexcept {
    // Fails only if the counter is full: it is readable then.
    static_cast<void>(::eventfd_write(descriptor_.get(), 1));
  }
  void clear() const noexcept {
    eventfd_t ignored = 0;
    static_cast<void>(::eventfd_read(descriptor_.get(), &ignored));
  }

 private:
  FileDescriptor descriptor_;
};

}  // namespace troupe
