#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "runtime/base/file.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/kv_transfer/lmcache/cache_engine_key.hpp"
#include "runtime/kv_transfer/lmcache/remote_metadata.hpp"
#include "runtime/kv_transfer/lmcache/remote_store.hpp"

namespace troupe::lmcache {
namespace {

namespace fs = std::filesystem;

/// Files of metadata and bytes, in several folders by the hash of the key. Any number of engines
/// may share them.
class FolderStore final : public RemoteStore {
 public:
  explicit FolderStore(std::vector<std::string> folders) : folders_(std::move(folders)) {}

  Result<std::size_t> count_leading(std::span<const std::string> keys) override {
    std::size_t count = 0;
    while (count < keys.size() && ::access(path_of(keys[count]).c_str(), R_OK) == 0) ++count;
    return count;
  }

  Result<std::optional<std::vector<std::byte>>> get(const std::string& key,
                                                    std::size_t num_bytes) override {
    const std::string path = path_of(key);
    const auto file = read_file(path, RemoteMetadata::num_bytes(1) + num_bytes);
    if (!file.ok() && file.error().code == ErrorCode::kNotFound)
      return std::optional<std::vector<std::byte>>();
    if (!file.ok()) return file.error();
    if (file->size() != RemoteMetadata::num_bytes(1) + num_bytes)
      return Error{ErrorCode::kTooLarge,
                   path + " has " + std::to_string(file->size()) + " bytes, expected " +
                       std::to_string(RemoteMetadata::num_bytes(1) + num_bytes),
                   {}};
    const auto* const begin =
        reinterpret_cast<const std::byte*>(file->data()) + RemoteMetadata::num_bytes(1);
    return std::optional(std::vector<std::byte>(begin, begin + num_bytes));
  }

  Result<void> put(const std::string& key, const TensorInfo& info,
                   std::span<const std::byte> bytes) override {
    const std::string path = path_of(key);
    std::error_code ignored;
    fs::create_directories(fs::path(path).parent_path(), ignored);
    std::string unfinished = path + ".XXXXXX";
    const FileDescriptor file(::mkostemp(unfinished.data(), O_CLOEXEC));
    const std::string metadata =
        pack_remote_metadata({.length = static_cast<std::int32_t>(bytes.size()),
                              .format = info.format,
                              .groups = {{info.dtype, info.shape}}});
    const bool written =
        file.valid() && write_all(file.get(), std::as_bytes(std::span(metadata)), 0) &&
        write_all(file.get(), bytes, metadata.size()) && ::fchmod(file.get(), 0644) == 0 &&
        ::rename(unfinished.c_str(), path.c_str()) == 0;
    if (written) return {};
    const Error error{ErrorCode::kIo, "cannot write " + path + ": " + std::strerror(errno), {}};
    ::unlink(unfinished.c_str());
    return error;
  }

 private:
  [[nodiscard]] std::string path_of(const std::string& key) const {
    std::size_t index = 0;
    if (folders_.size() > 1) {
      const auto parsed = parse_cache_engine_key(key);
      if (parsed.ok()) index = parsed->hash.magnitude % folders_.size();
    }
    return folders_[index] + "/" + remote_file_name(key);
  }

  const std::vector<std::string> folders_;
};

}  // namespace

Result<std::unique_ptr<RemoteStore>> make_folder_store(const RemoteUrl& url) {
  std::vector<std::string> folders;
  for (std::size_t begin = 0; begin < url.path.size();) {
    const std::size_t end = std::min(url.path.find(',', begin), url.path.size());
    if (end > begin) folders.push_back(url.path.substr(begin, end - begin));
    begin = end + 1;
  }
  if (folders.empty())
    return invalid_argument("remote_url is " + url.shown() + ", it must be fs://HOST:0/FOLDER",
                            "remote_url");
  for (const std::string& folder : folders) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error)
      return Error{ErrorCode::kIo, "remote_url " + url.shown() + ": " + error.message(),
                   "remote_url"};
  }
  return std::unique_ptr<RemoteStore>(std::make_unique<FolderStore>(std::move(folders)));
}

}  // namespace troupe::lmcache
