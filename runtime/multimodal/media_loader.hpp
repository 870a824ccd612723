#pragma once
// The bytes of a picture, from where a request says that it is.

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
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
  double timeout_s = 5;  ///< of one item
  std::size_t max_fetches = 8;  ///< at once, of one request
  std::size_t max_fetched_bytes = std::size_t{256} << 20;  ///< of one request, in all
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
  /// The files of a request. What comes from other hosts has arrived, or failed.
  class Batch {
   public:
    /// Once for each. Without a URL it is empty. Errors: see load.
    [[nodiscard]] Result<File> take(std::size_t index);

   private:
    friend MediaLoader;
    struct Fetched {
      Result<File> file = File();
      std::size_t num_users = 0;  ///< left
    };
    const MediaLoader* loader_ = nullptr;
    std::span<const std::string_view> urls_;
    WorkLimits limits_;
    std::map<std::string_view, Fetched> fetched_;  ///< by URL
  };
  /// Fetches what is on other hosts side by side, each URL once; the rest is read when it is taken.
  /// `urls` and the loader must outlive the result. Errors of Batch::take: also kInvalidArgument,
  /// all of them together have too many bytes.
  [[nodiscard]] Batch load_all(std::span<const std::string_view> urls,
                               const WorkLimits& limits = {}) const;

 private:
  explicit MediaLoader(MediaLoaderOptions options) : options_(std::move(options)) {}
  Result<std::vector<std::byte>> read_file_url(std::string_view url) const;
  /// `num_fetched`: bytes of the request so far.
  Result<std::vector<std::byte>> fetch(std::string url, const WorkLimits& limits,
                                       std::atomic<std::size_t>& num_fetched) const;

  MediaLoaderOptions options_;
};

}  // namespace troupe
