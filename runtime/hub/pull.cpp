#include "runtime/hub/pull.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>

#include "runtime/base/log.hpp"
#include "runtime/hub/hub_cache.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

Result<void> check_space(const HubCache& cache, std::uint64_t num_bytes) {
  std::error_code code;
  fs::create_directories(cache.folder(), code);
  if (code) return Error{ErrorCode::kIo, cache.folder().string() + ": " + code.message()};
  const fs::space_info space = fs::space(cache.folder(), code);
  if (code || space.available >= num_bytes) return {};
  return Error{ErrorCode::kIo, cache.folder().string() + " has " + bytes_text(space.available) +
                                   " free, the download needs " + bytes_text(num_bytes) +
                                   "; HF_HUB_CACHE names another folder"};
}

}  // namespace

std::string bytes_text(std::uint64_t num_bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(num_bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) value /= 1000, ++unit;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit > 0 && value < 9.95 ? "%.1f %s" : "%.0f %s", value,
                kUnits[unit]);
  return text.data();
}

Result<fs::path> pull_model(
    const HubReference& reference, const HubSettings& settings,
    const std::function<void(double fraction, const std::string& what)>& on_progress) {
  const HubCache cache(settings.cache);
  HubClient client(settings);
  on_progress(0, "asking " + settings.endpoint);
  ASSIGN_OR_RETURN(const HubSnapshot snapshot, client.snapshot(reference));
  std::vector<std::string> paths;
  std::map<std::string, const HubFile*> files;
  for (const HubFile& file : snapshot.files) {
    paths.push_back(file.path);
    files[file.path] = &file;
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> chosen, files_to_load(reference, paths));
  std::vector<HubTransfer> transfers;
  std::set<std::string> etags;
  std::uint64_t num_bytes = 0, num_missing = 0;
  for (const std::string& path : chosen) {
    const HubFile& file = *files[path];
    const fs::path blob = cache.blob(reference.repository, file.etag);
    std::error_code ignored;
    if (fs::exists(blob, ignored) || !etags.insert(file.etag).second) continue;
    const auto begun = fs::file_size(blob.string() + ".incomplete", ignored);
    num_bytes += file.num_bytes;
    num_missing += file.num_bytes - (ignored ? 0 : std::min(begun, file.num_bytes));
    transfers.push_back({.file = file,
                         .url = client.file_url(reference, snapshot.commit, path),
                         .blob = blob,
                         .lock = cache.lock(reference.repository, file.etag)});
  }
  RETURN_IF_ERROR(check_space(cache, num_missing));
  if (!transfers.empty())
    log_info("downloading", kv("model", reference.text()), kv("commit", snapshot.commit),
             kv("files", transfers.size()), kv("bytes", num_missing));
  RETURN_IF_ERROR(client.download(transfers, [&](const HubProgress& progress) {
    on_progress(static_cast<double>(progress.num_bytes) /
                    static_cast<double>(std::max<std::uint64_t>(num_bytes, 1)),
                bytes_text(progress.num_bytes) + " of " + bytes_text(num_bytes) +
                    (progress.what.empty() ? "" : " " + progress.what));
  }));
  for (const std::string& path : chosen)
    RETURN_IF_ERROR(cache.link(reference.repository, snapshot.commit, path, files[path]->etag));
  // Last: until then the snapshot is not considered complete.
  RETURN_IF_ERROR(cache.set_revision(reference, snapshot.commit));
  const fs::path folder = cache.snapshot(reference.repository, snapshot.commit);
  return reference.file.empty() ? folder : folder / chosen.front();
}

Result<fs::path> find_or_pull_model(
    const HubReference& reference, const HubSettings& settings,
    const std::function<void(double fraction, const std::string& what)>& on_progress) {
  if (auto found = HubCache(settings.cache).find(reference)) return *found;
  const std::string advice = "; `troupe pull " + reference.text() +
                             "` where there is a network fills " + settings.cache.string() +
                             ", which may be copied, or HF_ENDPOINT names a mirror";
  if (settings.offline) {
    return Error{ErrorCode::kUnavailable,
                 reference.text() + " is not in " + settings.cache.string() +
                     ", and HF_HUB_OFFLINE forbids to download it" + advice,
                 "model"};
  }
  auto pulled = pull_model(reference, settings, on_progress);
  if (pulled.ok() || pulled.error().code != ErrorCode::kUnavailable) return pulled;
  Error error = pulled.error();
  error.message = reference.text() + " is not in the cache, and " + error.message + advice;
  return error;
}

}  // namespace troupe
