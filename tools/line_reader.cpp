#include "tools/line_reader.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>

namespace troupe::tools {

LineReader::Status LineReader::next(std::string& line, bool wait) {
  for (;;) {
    const std::size_t end = buffer_.find('\n', searched_);
    if (end != std::string::npos || (ended_ && !buffer_.empty())) {
      const std::size_t taken = end == std::string::npos ? buffer_.size() : end + 1;
      line.assign(buffer_, 0, end);
      if (line.ends_with('\r')) line.pop_back();
      buffer_.erase(0, taken);
      searched_ = 0;
      num_bytes_ += taken;
      return Status::kLine;
    }
    if (ended_) return Status::kEnd;
    searched_ = buffer_.size();
    pollfd sources[] = {{.fd = descriptor_, .events = POLLIN, .revents = 0},
                        {.fd = interrupt_descriptor_, .events = POLLIN, .revents = 0}};
    const int ready = poll(sources, std::size(sources), wait ? -1 : 0);
    if (ready < 0) continue;  // a signal
    if (ready == 0) return Status::kNothingYet;
    if (sources[1].revents != 0) return Status::kInterrupted;
    char piece[1 << 16];
    const ssize_t count = read(descriptor_, piece, sizeof piece);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      ended_ = true;
    } else {
      buffer_.append(piece, static_cast<std::size_t>(count));
    }
  }
}

}  // namespace troupe::tools
