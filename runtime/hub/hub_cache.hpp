#pragma once
// The cache of the Hugging Face Hub on disk, in the layout of the Python package, so that each
// finds what the other has downloaded:
//
//   models--OWNER--NAME/refs/REVISION           the commit that a branch or tag stood for
//                       blobs/ETAG              contents: by SHA-256 (large files) or Git's SHA-1
//                       blobs/ETAG.incomplete   the beginning of a content
//                       snapshots/COMMIT/PATH   symbolic links to blobs

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/hub/hub_reference.hpp"

namespace troupe {

/// A snapshot of a repository in the cache.
struct CachedModel {
  HubReference reference;  ///< revision: the branch or tag, or the commit if none names it
  std::string commit;
  std::filesystem::path folder;    ///< of the snapshot
  std::vector<std::string> files;  ///< paths in it, sorted
  std::uint64_t num_bytes = 0;
};

class HubCache {
 public:
  explicit HubCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }
  [[nodiscard]] std::filesystem::path repository(const std::string& repository) const;
  /// Where a file of a model lies in the cache: the snapshot's folder, or the GGUF file (the first
  /// of its parts). Nullopt: it is not there, or not all of it.
  [[nodiscard]] std::optional<std::filesystem::path> find(const HubReference& reference) const;
  /// The commit in a path that find() has returned.
  [[nodiscard]] static std::string commit_of_path(const std::filesystem::path& path);
  /// All snapshots, by name and revision.
  [[nodiscard]] std::vector<CachedModel> list() const;

  [[nodiscard]] std::filesystem::path blob(const std::string& repository,
                                           const std::string& etag) const;
  [[nodiscard]] std::filesystem::path snapshot(const std::string& repository,
                                               const std::string& commit) const;
  /// The Python package locks this file while it downloads the blob.
  [[nodiscard]] std::filesystem::path lock(const std::string& repository,
                                           const std::string& etag) const;
  /// Links the file of a snapshot to its blob. Error: kIo.
  [[nodiscard]] Result<void> link(const std::string& repository, const std::string& commit,
                                  const std::string& path, const std::string& etag) const;
  /// Error: kIo.
  [[nodiscard]] Result<void> set_revision(const HubReference& reference,
                                          const std::string& commit) const;

 private:
  [[nodiscard]] std::optional<std::string> commit_of(const HubReference& reference) const;

  std::filesystem::path folder_;
};

/// The files of a repository that Troupe loads. For `reference.file` the GGUF file that it names,
/// with all of its parts. Errors: kNotFound, which names what there is.
[[nodiscard]] Result<std::vector<std::string>> files_to_load(const HubReference& reference,
                                                             const std::vector<std::string>& files);

}  // namespace troupe
