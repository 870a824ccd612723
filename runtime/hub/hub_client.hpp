#pragma once
// The HTTP API of the Hugging Face Hub.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "runtime/base/result.hpp"
#include "runtime/hub/hub_reference.hpp"
#include "runtime/hub/hub_settings.hpp"
#include "runtime/hub/hub_snapshot.hpp"

namespace troupe {

/// A content to download.
struct HubTransfer {
  HubFile file;
  std::string url;
  std::filesystem::path blob;  ///< where it goes, by way of BLOB.incomplete, which is resumed
  std::filesystem::path lock;  ///< held meanwhile
};

struct HubProgress {
  std::uint64_t num_bytes = 0;  ///< of all contents, on disk
  std::string what;             ///< the file that is downloaded
};

class HubClient {
 public:
  explicit HubClient(HubSettings settings) : settings_(std::move(settings)) {}

  /// Errors: kNotFound (no such repository or revision), kUnauthorized (private or gated),
  /// kUnavailable (the Hub cannot be reached), kCorrupt (its answer is malformed).
  [[nodiscard]] Result<HubSnapshot> snapshot(const HubReference& reference);

  [[nodiscard]] std::string file_url(const HubReference& reference, const std::string& commit,
                                     const std::string& path) const;

  /// Downloads up to eight contents at a time, and checks each by its hash. What fails on the way
  /// is tried again, from where it stopped. Pre: no two have the same blob. Errors: as snapshot(),
  /// and kIo (the disk), kCorrupt (the hash differs).
  [[nodiscard]] Result<void> download(std::span<const HubTransfer> transfers,
                                      const std::function<void(const HubProgress&)>& on_progress);

 private:
  HubSettings settings_;
};

}  // namespace troupe
