// What operator new throws says how much was asked for: "std::bad_alloc" tells nobody what to do.
// An exception that nobody catches is said in a sentence, too, before the process ends.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "tools/commands.hpp"

namespace troupe::tools {
namespace {

class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::size_t size) noexcept {
    std::snprintf(text_, sizeof text_,
                  "out of memory: %zu bytes were asked for and are not to be had (memory of the "
                  "host, cgroup limit, ulimit -v)",
                  size);
  }
  [[nodiscard]] const char* what() const noexcept override { return text_; }

 private:
  char text_[160];
};

[[noreturn]] void say_and_abort() {
  char text[512] = "troupe: ended by an error that nobody expected";
  try {
    if (const auto unhandled = std::current_exception()) std::rethrow_exception(unhandled);
  } catch (const std::exception& exception) {
    std::snprintf(text, sizeof text, "troupe: %s", exception.what());
  } catch (...) {
  }
  const std::size_t size = std::strlen(text);
  text[size] = '\n';
  if (write(STDERR_FILENO, text, size + 1) < 0) _exit(kExitFailure);
  std::abort();
}

}  // namespace

void explain_fatal_errors() { std::set_terminate(say_and_abort); }

}  // namespace troupe::tools

// A sanitizer has its own.
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
