#include "tools/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace troupe::tools {

ProgressBar::ProgressBar(std::string title)
    : title_(std::move(title)), terminal_(isatty(STDERR_FILENO) == 1) {}

void ProgressBar::show(double fraction, std::string_view what) {
  constexpr int kWidth = 40;
  const std::lock_guard lock(mutex_);
  fraction = std::clamp(fraction, 0.0, 1.0);
  const std::string text(what);
  if (!terminal_) {
    const int tenth = static_cast<int>(fraction * 10);
    if (tenth > last_tenth_)
      std::fprintf(stderr, "%s %3.0f%% %s\n", title_.c_str(), fraction * 100, text.c_str());
    last_tenth_ = std::max(last_tenth_, tenth);
    return;
  }
  const int filled = static_cast<int>(fraction * kWidth);
  const std::string bar = std::string(static_cast<std::size_t>(filled), '#') +
                          std::string(static_cast<std::size_t>(kWidth - filled), '.');
  std::fprintf(stderr, "\r%s [%s] %3.0f%% %-30.30s", title_.c_str(), bar.c_str(), fraction * 100,
               text.c_str());
  drawn_ = true;
}

void ProgressBar::show_count(std::string_view what) {
  const std::lock_guard lock(mutex_);
  if (!terminal_) return;
  std::fprintf(stderr, "\r%s %-60.60s", title_.c_str(), std::string(what).c_str());
  drawn_ = true;
}

void ProgressBar::complete(std::string_view what) {
  show(1, what);
  finish();
}

void ProgressBar::finish() {
  const std::lock_guard lock(mutex_);
  if (drawn_) std::fputc('\n', stderr);
  drawn_ = false;
}

}  // namespace troupe::tools
