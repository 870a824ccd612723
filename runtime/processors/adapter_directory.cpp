#include "runtime/processors/adapter_directory.hpp"

#include <algorithm>
#include <system_error>

namespace troupe {
namespace {

constexpr const char* kAdapterFiles[] = {"adapter_config.json", "adapter_model.safetensors"};

}  // namespace

AdapterDirectory::Stamps AdapterDirectory::read() const {
  namespace fs = std::filesystem;
  Stamps stamps;
  std::error_code error;
  for (fs::directory_iterator next(folder_, error), end; !error && next != end;
       next.increment(error)) {
    Stamp stamp;
    std::error_code missing;
    for (const char* const file : kAdapterFiles) {
      const fs::path path = next->path() / file;
      stamp.num_bytes += fs::file_size(path, missing);
      if (missing) break;
      stamp.newest = std::max<std::int64_t>(
          stamp.newest, fs::last_write_time(path, missing).time_since_epoch().count());
      if (missing) break;
    }
    if (!missing) stamps[next->path().filename().string()] = stamp;
  }
  return stamps;
}

AdapterDirectory::Changes AdapterDirectory::scan() {
  Changes changes;
  Stamps now = read();
  for (const auto& [name, stamp] : now) {
    const auto before = seen_.find(name);
    const bool is_complete = before != seen_.end() && before->second == stamp;
    const auto loaded = loaded_.find(name);
    if (!is_complete || (loaded != loaded_.end() && loaded->second == stamp)) continue;
    loaded_[name] = stamp;
    changes.to_load.push_back(
        {.name = name, .path = (folder_ / name).string(), .load_inplace = true});
  }
  for (auto next = loaded_.begin(); next != loaded_.end();) {
    const auto current = next++;
    if (now.contains(current->first)) continue;
    changes.to_unload.push_back(current->first);
    loaded_.erase(current);
  }
  seen_ = std::move(now);
  return changes;
}

}  // namespace troupe
