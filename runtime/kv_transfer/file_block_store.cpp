#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "runtime/base/batch_reader.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/kv_transfer/block_store.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHashDigits = 2 * sizeof(BlockHash);
constexpr std::string_view kSuffix = ".bin";
constexpr std::string_view kGroupMark = "_g";
constexpr int kBlockDepth = 2;  ///< in the folder

fs::path block_path(const fs::path& folder, const StoreKey& key) {
  const std::string hash = to_hex(key.hash.bytes);
  return folder / hash.substr(0, 3) /
         (hash.substr(3, 2) + std::string(kGroupMark) + std::to_string(key.group)) /
         (hash + std::string(kSuffix));
}

Error file_error(const std::string& what, const fs::path& path) {
  return {errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
          "cannot " + what + " " + path.string() + ": " + std::strerror(errno),
          {}};
}

class FileBlockStore final : public BlockStore {
 public:
  explicit FileBlockStore(fs::path folder) : folder_(std::move(folder)) {}

  Result<std::shared_ptr<const Blob>> load(const StoreKey& key) override {
    return std::move(load_all({&key, 1}).front());
  }

  std::vector<Result<std::shared_ptr<const Blob>>> load_all(
      std::span<const StoreKey> keys) override {
    std::vector<Result<std::shared_ptr<const Blob>>> blobs;
    for (std::size_t i = 0; i < keys.size(); i += kMaxOpenFiles)
      load_some(keys.subspan(i, std::min(kMaxOpenFiles, keys.size() - i)), blobs);
    return blobs;
  }

  Result<void> save(const StoreKey& key, Blob blob) override {
    const fs::path path = path_of(key);
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    if (error)
      return Error{ErrorCode::kIo,
                   "cannot make " + path.parent_path().string() + ": " + error.message(),
                   {}};
    std::string unfinished = path.string() + ".XXXXXX";
    const FileDescriptor file(::mkostemp(unfinished.data(), O_CLOEXEC));
    if (!file.valid()) return file_error("write", unfinished);
    const auto written = [&]() -> Result<void> {
      for (std::size_t done = 0; done < blob.size();) {
        const ssize_t count = ::write(file.get(), blob.data() + done, blob.size() - done);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return file_error("write", unfinished);
        done += static_cast<std::size_t>(count);
      }
      if (::rename(unfinished.c_str(), path.c_str()) != 0) return file_error("rename", unfinished);
      return {};
    }();
    if (!written.ok()) ::unlink(unfinished.c_str());
    return written;
  }

  void remove(const StoreKey& key) override { ::unlink(path_of(key).c_str()); }

  void clear() override {
    for (const StoreKey& key : list_block_files(folder_.string())) remove(key);
  }

  std::string place_of(const StoreKey& key) const override { return path_of(key).string(); }

 private:
  [[nodiscard]] fs::path path_of(const StoreKey& key) const { return block_path(folder_, key); }

  void load_some(std::span<const StoreKey> keys,
                 std::vector<Result<std::shared_ptr<const Blob>>>& blobs) {
    std::vector<FileDescriptor> files;
    std::vector<std::shared_ptr<Blob>> contents;
    std::vector<BatchReader::Read> reads;
    std::vector<std::optional<Error>> errors;
    for (const StoreKey& key : keys) {
      const fs::path path = path_of(key);
      FileDescriptor& file = files.emplace_back(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      struct stat status {};
      const bool opened = file.valid() && ::fstat(file.get(), &status) == 0;
      errors.push_back(opened ? std::nullopt : std::optional(file_error("read", path)));
      contents.push_back(
          std::make_shared<Blob>(opened ? static_cast<std::size_t>(status.st_size) : 0));
      reads.push_back({.file = file.get(), .to = *contents.back()});
    }
    reader_.read(reads);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!errors[i] && reads[i].error != 0) {
        errno = reads[i].error;
        errors[i] = file_error("read", path_of(keys[i]));
      }
      if (errors[i]) {
        blobs.emplace_back(*std::move(errors[i]));
        continue;
      }
      contents[i]->resize(reads[i].num_read);  // it may have been cut meanwhile
      // It was used last, also after a restart.
      static_cast<void>(::futimens(files[i].get(), nullptr));
      blobs.emplace_back(std::move(contents[i]));
    }
  }

  static constexpr std::size_t kMaxOpenFiles = 64;

  fs::path folder_;
  BatchReader reader_;
};

/// Whether the path is that of a block in the folder.
bool parse_block_path(const fs::path& folder, const fs::path& path, StoreKey& key) {
  const std::string name = path.filename().string();
  const std::string parent = path.parent_path().filename().string();
  const std::size_t mark = parent.find(kGroupMark);
  if (name.size() != kHashDigits + kSuffix.size() || mark == std::string::npos) return false;
  for (std::size_t i = 0; i < sizeof(BlockHash); ++i) {
    const char* const digits = name.data() + 2 * i;
    const auto read = std::from_chars(digits, digits + 2, key.hash.bytes[i], 16);
    if (read.ec != std::errc() || read.ptr != digits + 2) return false;
  }
  const char* const end = parent.data() + parent.size();
  const auto read = std::from_chars(parent.data() + mark + kGroupMark.size(), end, key.group);
  return read.ec == std::errc() && key.group >= 0 && block_path(folder, key) == path;
}

}  // namespace

std::unique_ptr<BlockStore> make_file_block_store(std::string folder) {
  return std::make_unique<FileBlockStore>(std::move(folder));
}

Result<void> make_store_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return {};
  return Error{ErrorCode::kIo,
               "kv-transfer-config: cannot make the folder " + folder + ": " + error.message(),
               "kv-transfer-config"};
}

std::vector<StoreKey> list_block_files(const std::string& folder) {
  std::vector<std::pair<fs::file_time_type, StoreKey>> found;
  std::error_code error;
  for (fs::recursive_directory_iterator file(folder, error), end; !error && file != end;
       file.increment(error)) {
    StoreKey key;
    std::error_code ignored;
    if (file.depth() != kBlockDepth || !parse_block_path(folder, file->path(), key)) continue;
    const auto time = file->last_write_time(ignored);
    if (!ignored) found.emplace_back(time, key);
  }
  std::ranges::sort(found, {}, &std::pair<fs::file_time_type, StoreKey>::first);
  std::vector<StoreKey> keys;
  for (const auto& [time, key] : found) keys.push_back(key);
  return keys;
}

}  // namespace troupe
