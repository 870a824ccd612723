#pragma once
// The bytes of an image, from where a request says that it is.

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/base/work_budget.hpp"

namespace troupe {

struct MediaLoaderOptions {
  /// Files below this folder may be named; empty: none.
  std::filesystem::path local_folder;
  /// Hosts that may be asked; empty: none.
  std::vector<std::string> domains;
  std::size_t max_bytes = std::size_t{64} << 20;
  double timeout_s = 5;                                    ///< of one item
  std::size_t max_fetches = 8;                             ///< at once, of one request
  std::size_t max_fetched_bytes = std::size_t{256} << 20;  ///< of one request, in all
  std::size_t max_held_bytes = std::size_t{1} << 30;       ///< of all requests that are prepared
};

/// Reads data: URLs, and where it is allowed file:, http: and https: ones. Constant: any thread may
/// use it.
///
/// Of http: a redirection is followed (at most five) to hosts that may be asked themselves. An
/// address that is not of the public internet is not connected to, unless the operator has named
/// it: as an address, or localhost.
class MediaLoader {
 public:
  /// Errors: kNotFound, kIo (the folder).
  static Result<MediaLoader> create(MediaLoaderOptions options);

  /// Errors: kInvalidArgument (the URL, its host, a file outside of the folder, a size over the
  /// limit), kUnprocessable (the server's answer), kTimeout, kUnavailable (no connection). `limits`
  /// may end it earlier.
  [[nodiscard]] Result<std::vector<std::byte>> load(std::string_view url,
                                                    const WorkLimits& limits = {}) const;

  using File = std::shared_ptr<const std::vector<std::byte>>;
  /// What has come from other hosts, by URL.
  using FetchedFiles = std::map<std::string, Result<File>, std::less<>>;
  /// Fetches them side by side, each once, until `limits` end it. The URLs that are not of other
  /// hosts are left out. Blocks. Errors of a file: see load; also kInvalidArgument, all of them
  /// together have too many bytes; kUnavailable, those of all requests have.
  [[nodiscard]] FetchedFiles fetch_all(std::span<const std::string_view> urls,
                                       const WorkLimits& limits) const;
  /// Those of them that are on other hosts and may be asked for, each once.
  [[nodiscard]] std::vector<std::string> remote_of(std::span<const std::string_view> urls) const;
  /// Whether it may ask other hosts.
  [[nodiscard]] bool fetches() const noexcept { return !options_.domains.empty(); }

  /// The files of a request. What comes from other hosts has arrived, or failed.
  class Batch {
   public:
    /// Once for each, in order. Without a URL it is empty. Errors: see load.
    [[nodiscard]] Result<File> take(std::size_t index);

   private:
    friend MediaLoader;
    const MediaLoader* loader_ = nullptr;
    std::span<const std::string_view> urls_;
    WorkLimits limits_;
    FetchedFiles fetched_;
  };
  /// `fetched`: fetch_all of the URLs, if they were fetched before; else it is done now. The rest
  /// is read when it is taken. `urls` and the loader must outlive the result. Errors of
  /// Batch::take: see load and fetch_all.
  [[nodiscard]] Batch load_all(std::span<const std::string_view> urls, const WorkLimits& limits,
                               std::optional<FetchedFiles> fetched = std::nullopt) const;

 private:
  explicit MediaLoader(MediaLoaderOptions options)
      : options_(std::move(options)), num_held_(std::make_shared<std::atomic<std::size_t>>(0)) {}
  Result<std::vector<std::byte>> read_file_url(std::string_view url) const;
  /// `num_fetched`: bytes of the request so far.
  Result<File> fetch(std::string url, const WorkLimits& limits,
                     std::atomic<std::size_t>& num_fetched) const;

  MediaLoaderOptions options_;
  std::shared_ptr<std::atomic<std::size_t>> num_held_;  ///< bytes of what was fetched and is there
};

}  // namespace troupe
