#pragma once
// The bytes of a picture, from where a request says that it is.

#include <cstddef>
#include <filesystem>
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

 private:
  explicit MediaLoader(MediaLoaderOptions options) : options_(std::move(options)) {}
  Result<std::vector<std::byte>> read_file_url(std::string_view url) const;
  Result<std::vector<std::byte>> fetch(std::string url, const WorkLimits& limits) const;

  MediaLoaderOptions options_;
};

}  // namespace troupe
