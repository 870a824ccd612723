#pragma once
// Replaying recorded decisions of the reference scheduler: a trace gives operations with their
// results and the state after each; our Scheduler and caches must give the same.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

#include "runtime/base/json.hpp"

namespace troupe {

struct TraceReport {
  std::size_t num_traces = 0;
  std::size_t num_operations = 0;
  std::size_t num_mismatches = 0;  ///< traces that differ; each is left at its first difference
  std::string first_difference;    ///< in words, empty if there is none
  void operator+=(const TraceReport& other);
};

/// Replays the first of each `every` traces; num_traces counts all of the file. Reads .jsonl or
/// .jsonl.gz. A file that cannot be read counts as a mismatch.
[[nodiscard]] TraceReport replay_trace_file(const std::filesystem::path& file,
                                            std::size_t every = 1);

// ---- the pieces ----

/// Makes the operations of one trace. Lives as long as the trace.
class TraceReplayer {
 public:
  virtual ~TraceReplayer() = default;
  /// `line` has "op", "out" and "st". Returns the first difference in words, or nothing.
  virtual std::string replay(const nlohmann::json& line) = 0;
};
[[nodiscard]] std::unique_ptr<TraceReplayer> make_scheduler_replayer(
    const std::vector<nlohmann::json>& trace);
[[nodiscard]] std::unique_ptr<TraceReplayer> make_kv_cache_replayer(
    const std::vector<nlohmann::json>& trace);
[[nodiscard]] std::unique_ptr<TraceReplayer> make_encoder_cache_replayer(
    const std::vector<nlohmann::json>& trace);

/// Where two values differ, in words; empty if they are equal. What is missing on one side counts
/// as equal to null, false, 0 and empty on the other.
[[nodiscard]] std::string describe_difference(const std::string& path,
                                              const nlohmann::json& expected,
                                              const nlohmann::json& got);

}  // namespace troupe
