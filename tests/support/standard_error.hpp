#pragma once
// Captures the log of a test.

#include <unistd.h>

#include <cstdio>
#include <string>

namespace troupe {

/// Takes what is written to standard error while it lives.
class StandardError {
 public:
  StandardError() : file_(std::tmpfile()), saved_(dup(STDERR_FILENO)) {
    std::fflush(stderr);
    dup2(fileno(file_), STDERR_FILENO);
  }
  ~StandardError() {
    std::fflush(stderr);
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    std::fclose(file_);
  }
  StandardError(const StandardError&) = delete;
  StandardError& operator=(const StandardError&) = delete;

  /// The output since the last call.
  std::string take() {
    std::fflush(stderr);
    std::string all;
    char bytes[4096];
    for (ssize_t size; (size = pread(fileno(file_), bytes, sizeof bytes, at_)) > 0; at_ += size)
      all.append(bytes, static_cast<std::size_t>(size));
    return all;
  }

 private:
  std::FILE* const file_;
  const int saved_;
  off_t at_ = 0;
};

}  // namespace troupe
