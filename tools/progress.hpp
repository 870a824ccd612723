#pragma once
// A progress bar on standard error: redrawn in place on a terminal, otherwise printed as occasional
// lines.

#include <mutex>
#include <string>
#include <string_view>

namespace troupe::tools {

class ProgressBar {
 public:
  explicit ProgressBar(std::string title);
  /// fraction in [0, 1]. Any thread.
  void show(double fraction, std::string_view what);
  /// For work of unknown length: on a terminal only. Any thread.
  void show_count(std::string_view what);
  /// Fills the bar and ends the line: the work is done.
  void complete(std::string_view what);
  /// Ends the line.
  void finish();

 private:
  std::mutex mutex_;
  std::string title_;
  bool terminal_;
  bool drawn_ = false;
  int last_tenth_ = -1;
};

}  // namespace troupe::tools
