#include "tests/support/trace_replay.hpp"

#include <zlib.h>

#include <exception>
#include <vector>

namespace troupe {

using nlohmann::json;

void TraceReport::operator+=(const TraceReport& other) {
  num_traces += other.num_traces;
  num_operations += other.num_operations;
  num_mismatches += other.num_mismatches;
  if (first_difference.empty()) first_difference = other.first_difference;
}

namespace {

bool is_empty(const json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  return value.empty();
}

std::string shorten(const json& value) {
  std::string text = value.dump();
  if (text.size() > 400) text = text.substr(0, 400) + "...";
  return text;
}

/// zlib reads plain files as well.
class LineReader {
 public:
  explicit LineReader(const std::filesystem::path& file) : file_(gzopen(file.c_str(), "rb")) {
    if (file_ != nullptr) gzbuffer(file_, 1 << 18);
  }
  ~LineReader() {
    if (file_ != nullptr) gzclose(file_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;
  [[nodiscard]] bool ok() const { return file_ != nullptr; }
  bool next(std::string& line) {
    line.clear();
    char part[1 << 14];
    while (gzgets(file_, part, sizeof part) != nullptr) {
      line += part;
      if (line.back() == '\n') return true;
    }
    return !line.empty();
  }

 private:
  gzFile file_;
};

std::string replay_lines(const std::vector<json>& trace, std::size_t& index) {
  try {
    const std::string family = trace[0]["family"];
    std::unique_ptr<TraceReplayer> replayer = family == "kvm"   ? make_kv_cache_replayer(trace)
                                              : family == "enc" ? make_encoder_cache_replayer(trace)
                                                                : make_scheduler_replayer(trace);
    for (index = 1; index < trace.size(); ++index) {
      std::string difference = replayer->replay(trace[index]);
      if (!difference.empty()) return difference;
    }
  } catch (const std::exception& error) {
    return std::string("failed: ") + error.what();
  }
  return {};
}

void replay_trace(const std::vector<json>& trace, TraceReport& report) {
  if (trace.empty()) return;
  report.num_operations += trace.size() - 1;
  std::size_t index = 0;
  const std::string difference = replay_lines(trace, index);
  if (difference.empty()) return;
  ++report.num_mismatches;
  if (!report.first_difference.empty()) return;
  report.first_difference =
      trace[0]["trace"].get<std::string>() + ", operation " + std::to_string(index) + " " +
      (index < trace.size() && index > 0 ? shorten(trace[index]["op"]) : "") + ": " + difference;
}

}  // namespace

std::string describe_difference(const std::string& path, const json& expected, const json& got) {
  if (expected.is_object() && got.is_object()) {
    for (const auto& [key, value] : expected.items()) {
      const std::string inner =
          describe_difference(path + "." + key, value, got.contains(key) ? got[key] : json());
      if (!inner.empty()) return inner;
    }
    for (const auto& [key, value] : got.items()) {
      if (expected.contains(key)) continue;
      const std::string inner = describe_difference(path + "." + key, json(), value);
      if (!inner.empty()) return inner;
    }
    return {};
  }
  if (expected.is_array() && got.is_array() && expected.size() == got.size()) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::string inner =
          describe_difference(path + "[" + std::to_string(i) + "]", expected[i], got[i]);
      if (!inner.empty()) return inner;
    }
    return {};
  }
  if (expected == got || (is_empty(expected) && is_empty(got))) return {};
  return path + ": expected " + shorten(expected) + ", got " + shorten(got);
}

TraceReport replay_trace_file(const std::filesystem::path& file, std::size_t every) {
  TraceReport report;
  LineReader reader(file);
  std::vector<json> trace;
  std::string line;
  try {
    if (!reader.ok()) throw std::runtime_error("cannot be opened");
    bool chosen = true;
    while (reader.next(line)) {
      if (line.starts_with("{\"trace\":")) {
        replay_trace(trace, report);
        trace.clear();
        chosen = report.num_traces++ % every == 0;
      }
      if (chosen) trace.push_back(json::parse(line));
    }
    replay_trace(trace, report);
  } catch (const std::exception& error) {
    ++report.num_mismatches;
    if (report.first_difference.empty())
      report.first_difference = file.string() + ": " + error.what();
  }
  return report;
}

}  // namespace troupe
