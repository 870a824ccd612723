#pragma once
// Parses a streamed response of an OpenAI server to a RequestRecord.

#include <optional>
#include <string>
#include <string_view>

#include "tools/bench/report.hpp"

namespace troupe::tools {

/// Splits a body of type text/event-stream into the payloads of its events. Owns the unfinished
/// rest.
class EventStream {
 public:
  /// Calls on_data(payload) for each event completed by `bytes`; comments and events without data
  /// are skipped.
  template <class OnData>
  void feed(std::string_view bytes, OnData&& on_data) {
    rest_ += bytes;
    std::size_t begin = 0;
    for (;;) {
      const std::size_t end = rest_.find('\n', begin);
      if (end == std::string::npos) break;
      std::string_view line(rest_.data() + begin, end - begin);
      begin = end + 1;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (take_line(line)) {
        on_data(std::string_view(data_));
        data_.clear();
      }
    }
    rest_.erase(0, begin);
  }

 private:
  /// True if the line ends an event that has data.
  bool take_line(std::string_view line);

  std::string rest_;
  std::string data_;
};

/// Processes the events of one response of /v1/completions or /v1/chat/completions and records
/// their times. The first token is the first chunk with text; every later chunk ends an inter-token
/// latency. A response without any text is timed by its end. Times: seconds since the request was
/// sent.
class AnswerRecorder {
 public:
  void on_event(std::string_view data, double time);
  /// The record, without start and queue times. Without `usage` from the server, each chunk counts
  /// as a token.
  [[nodiscard]] RequestRecord finish() &&;

 private:
  RequestRecord record_;
  /// The first chunk of a completion, possibly without text; of a chat the first chunk with text.
  std::optional<double> first_token_;
  double last_chunk_ = 0;
  bool ended_ = false;  ///< a finish reason was received
  bool has_usage_ = false;
};

}  // namespace troupe::tools
