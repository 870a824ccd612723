// operator new throws an exception that contains the size, since "std::bad_alloc" does not help the
// user. Uncaught exceptions are reported in a sentence, too, before the process ends.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include "actors/exceptions.hpp"
#include "tools/commands.hpp"

namespace troupe::tools {
namespace {

class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::size_t size) noexcept {
    std::snprintf(
        text_, sizeof text_,
        "out of memory: %zu bytes could not be allocated (memory of the host, cgroup limit, "
        "ulimit -v)",
        size);
  }
  [[nodiscard]] const char* what() const noexcept override { return text_; }

 private:
  char text_[160];
};

/// Address space limit of the process in bytes; 0: no limit.
std::size_t address_space_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
  return limit.rlim_cur;
}

bool is_lack_of_resources(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const std::system_error& error) {
    return error.code() == std::errc::resource_unavailable_try_again;
  } catch (...) {
    return false;
  }
}

[[noreturn]] void say_and_end() {
  char text[512] = "troupe: terminated by an unexpected error";
  bool is_bug = true;
  if (const auto unhandled = std::current_exception()) {
    std::snprintf(text, sizeof text, "troupe: %s", describe(unhandled).c_str());
    is_bug = !is_lack_of_resources(unhandled);
  } else if (const std::size_t limit = address_space_limit(); limit != 0) {
    // CAF could not start a thread: the exception destroys running threads, which terminates the
    // process before it can be caught.
    std::snprintf(text, sizeof text,
                  "troupe: cannot start a thread, or out of memory: %zu bytes of address space are "
                  "allowed (ulimit -v)",
                  limit);
    is_bug = false;
  }
  const std::size_t size = std::strlen(text);
  text[size] = '\n';
  if (write(STDERR_FILENO, text, size + 1) < 0 || !is_bug) _exit(kExitFailure);
  std::abort();
}

}  // namespace

void explain_fatal_errors() { std::set_terminate(say_and_end); }

}  // namespace troupe::tools

// Sanitizers have their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

void* operator new(std::size_t size) {
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw troupe::tools::OutOfMemory(size);
  return memory;
}

void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  void* const memory = std::aligned_alloc(unit, (size + unit - 1) / unit * unit);
  if (memory == nullptr) throw troupe::tools::OutOfMemory(size);
  return memory;
}

#endif
