#pragma once
// A folder of adapters that come and go.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "messages/worker.hpp"

namespace troupe {

/// Remembers what it has found in a folder that has a folder for each adapter, by name. Used by one
/// thread, which may block.
class AdapterDirectory {
 public:
  explicit AdapterDirectory(std::filesystem::path folder) : folder_(std::move(folder)) {}

  struct Changes {
    std::vector<LoadAdapter> to_load;  ///< new, or with other files; in place, by name
    std::vector<std::string> to_unload;
  };
  /// Looks again. An adapter that is still being copied is not one yet: its files must be as they
  /// were the last time.
  [[nodiscard]] Changes scan();
  /// It could not be loaded for now: the next scan names it again.
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
  Stamps loaded_;  // that were named
};

}  // namespace troupe
