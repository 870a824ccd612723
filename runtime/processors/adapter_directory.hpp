#pragma once
// A watched folder of adapters.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "messages/worker.hpp"

namespace troupe {

/// Keeps the state of a folder that has a subfolder for each adapter, by name. Used by one thread,
/// which may block.
class AdapterDirectory {
 public:
  explicit AdapterDirectory(std::filesystem::path folder) : folder_(std::move(folder)) {}

  struct Changes {
    std::vector<LoadAdapter> to_load;  ///< new, or with other files; in place, by name
    std::vector<std::string> to_unload;
  };
  /// Scans the folder. An adapter that is still being copied is not reported: its files must be
  /// unchanged since the last scan.
  [[nodiscard]] Changes scan();
  /// The adapter could not be loaded now: the next scan reports it again.
  void retry(const std::string& name) { loaded_.erase(name); }

 private:
  /// Sizes and times of an adapter's files.
  struct Stamp {
    std::uint64_t num_bytes = 0;
    std::int64_t newest = 0;
    bool operator==(const Stamp&) const = default;
  };
  using Stamps = std::map<std::string, Stamp>;
  [[nodiscard]] Stamps read() const;

  std::filesystem::path folder_;
  Stamps seen_;    // by the last scan
  Stamps loaded_;  // that were reported
};

}  // namespace troupe
