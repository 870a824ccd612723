// ECSharedMemoryConnector: outputs in memory that the processes of one host share.

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <vector>

#include "runtime/base/file.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/file_lock.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/ec_transfer/connectors.hpp"

namespace troupe {
namespace {

constexpr std::array<char, 8> kSegmentMagic = {'T', 'r', 'o', 'u', 'p', 'E', 'C', '1'};
/// Values begin at a multiple of it.
constexpr std::size_t kSegmentAlignment = 64;
/// What segments of outputs, finished and not, begin with.
constexpr const char* kFinishedPrefix = "output-";
constexpr const char* kUnfinishedPrefix = "unfinished-";
/// The files that are locked.
constexpr const char* kUsers = "users";
constexpr const char* kRoom = "room";

struct SegmentHeader {
  std::array<char, 8> magic{};
  std::int64_t num_rows = 0;
  std::int64_t hidden_size = 0;
  std::uint64_t key_bytes = 0;  ///< of the key, which comes next
};

std::size_t values_offset(std::size_t key_bytes) {
  const std::size_t end = sizeof(SegmentHeader) + key_bytes;
  return (end + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
}

Error segment_error(const std::string& what, const std::filesystem::path& path) {
  return {ErrorCode::kIo, "cannot " + what + " " + path.string() + ": " + std::strerror(errno)};
}

bool is_linked(const FileDescriptor& file) {
  struct stat status {};
  return ::fstat(file.get(), &status) == 0 && status.st_nlink > 0;
}

/// A folder of a memory file system with a segment, that is a file, for each output. A segment is
/// renamed when it is complete, and not changed after that. Users of the folder have a shared lock
/// on its file `users`, to evict an exclusive one on `room`; both end with the process.
class SharedMemoryStore final : public OutputStore {
 public:
  SharedMemoryStore(std::filesystem::path folder, std::size_t max_bytes, std::string encoder_key)
      : folder_(std::move(folder)), max_bytes_(max_bytes), encoder_key_(std::move(encoder_key)) {}

  /// The last one to leave removes the folder.
  ~SharedMemoryStore() override {
    if (!users_.valid() || !lock_file(users_, LOCK_EX | LOCK_NB) || !is_linked(users_)) return;
    remove_segments();
    for (const char* name : {kRoom, kUsers}) ::unlink((folder_ / name).c_str());
    ::rmdir(folder_.c_str());
  }

  Result<void> open() {
    constexpr int kMaxTries = 100;
    for (int i = 0; i < kMaxTries; ++i) {
      if (::mkdir(folder_.c_str(), S_IRWXU) != 0 && errno != EEXIST)
        return segment_error("make", folder_);
      ASSIGN_OR_RETURN(const bool is_there, enter());
      if (is_there) return {};
    }
    return Error{ErrorCode::kIo, folder_.string() + " is removed again and again"};
  }

  bool has(const std::string& identifier) override {
    struct stat status {};
    return ::stat(path_of(identifier).c_str(), &status) == 0 && S_ISREG(status.st_mode);
  }

  Result<StoredOutput> load(const std::string& identifier, const OutputShape& shape) override {
    const std::filesystem::path path = path_of(identifier);
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid() && errno == ENOENT)
      return Error{ErrorCode::kNotFound, path.string() + " does not exist (any more)"};
    if (!file.valid()) return segment_error("open", path);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) return segment_error("read", path);
    const std::string key = key_of(identifier);
    const std::size_t offset = values_offset(key.size());
    const auto num_bytes = static_cast<std::size_t>(status.st_size);
    if (num_bytes != offset + shape.num_bytes())
      return Error{ErrorCode::kCorrupt, path.string() + " has " + std::to_string(num_bytes) +
                                            " bytes, expected " +
                                            std::to_string(offset + shape.num_bytes())};
    void* const memory = ::mmap(nullptr, num_bytes, PROT_READ, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) return segment_error("map", path);
    const std::shared_ptr<const void> owner(
        memory, [num_bytes](const void* begin) { ::munmap(const_cast<void*>(begin), num_bytes); });
    SegmentHeader header;
    std::memcpy(&header, memory, sizeof(header));
    const auto* const bytes = static_cast<const char*>(memory);
    if (header.magic != kSegmentMagic || header.key_bytes != key.size() ||
        key != std::string_view(bytes + sizeof(header), key.size()))
      return Error{ErrorCode::kCorrupt,
                   path.string() + " does not have the output that it is named after"};
    if (header.num_rows != shape.num_rows || header.hidden_size != shape.hidden_size)
      return Error{ErrorCode::kCorrupt, path.string() + " has the shape [" +
                                            std::to_string(header.num_rows) + ", " +
                                            std::to_string(header.hidden_size) + "], expected [" +
                                            std::to_string(shape.num_rows) + ", " +
                                            std::to_string(shape.hidden_size) + "]"};
    // The time of its last use.
    static_cast<void>(::futimens(file.get(), nullptr));
    return StoredOutput{owner,
                        {reinterpret_cast<const float*>(bytes + offset), shape.num_values()}};
  }

  Result<void> save(const std::string& identifier, const OutputShape& shape,
                    std::span<const float> values) override {
    const std::string key = key_of(identifier);
    const std::size_t offset = values_offset(key.size());
    const std::size_t num_bytes = offset + shape.num_bytes();
    if (num_bytes > max_bytes_)
      return Error{ErrorCode::kTooLarge, "it has " + std::to_string(num_bytes) +
                                             " bytes, ec_buffer_size is " +
                                             std::to_string(max_bytes_)};
    if (!lock_file(room_, LOCK_EX)) return segment_error("lock", folder_ / kRoom);
    make_room(num_bytes);
    const Result<void> written = write(path_of(identifier), key, shape, values);
    lock_file(room_, LOCK_UN);
    return written;
  }

 private:
  /// False: the last user has removed the folder meanwhile.
  Result<bool> enter() {
    // In a folder that all may write to, another user may have been first.
    struct stat status {};
    if (::lstat(folder_.c_str(), &status) != 0) {
      if (errno == ENOENT) return false;
      return segment_error("read", folder_);
    }
    if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() ||
        (status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
      return Error{ErrorCode::kIo,
                   folder_.string() + " is not a folder of this user that is closed to others"};
    users_ = open_lock(kUsers);
    if (!users_.valid()) {
      if (errno == ENOENT) return false;
      return segment_error("open", folder_ / kUsers);
    }
    // The only user: existing files were left by processes that were killed. The lock of a file
    // that the last user has removed is free as well, but the folder may have other users again.
    if (lock_file(users_, LOCK_EX | LOCK_NB) && is_linked(users_)) remove_segments();
    if (!lock_file(users_, LOCK_SH)) return segment_error("lock", folder_ / kUsers);
    if (!is_linked(users_)) return false;
    room_ = open_lock(kRoom);
    if (!room_.valid()) return segment_error("open", folder_ / kRoom);
    return true;
  }

  struct Segment {
    std::filesystem::path path;
    std::size_t num_bytes = 0;
    struct timespec used {};
  };

  [[nodiscard]] std::string key_of(const std::string& identifier) const {
    return encoder_key_ + '\n' + identifier;
  }
  [[nodiscard]] std::filesystem::path path_of(const std::string& identifier) const {
    return folder_ / (kFinishedPrefix + to_hex(xxh3_128(key_of(identifier))));
  }

  [[nodiscard]] FileDescriptor open_lock(const char* name) const {
    return FileDescriptor(::open((folder_ / name).c_str(),
                                 O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  }

  [[nodiscard]] std::vector<std::filesystem::path> paths_with(std::string_view prefix) const {
    std::vector<std::filesystem::path> paths;
    std::error_code error;
    for (std::filesystem::directory_iterator entry(folder_, error), end; !error && entry != end;
         entry.increment(error))
      if (entry->path().filename().string().starts_with(prefix)) paths.push_back(entry->path());
    return paths;
  }

  /// Pre: the folder has no other user.
  void remove_segments() const {
    for (const char* prefix : {kFinishedPrefix, kUnfinishedPrefix})
      for (const std::filesystem::path& path : paths_with(prefix)) ::unlink(path.c_str());
  }

  /// Evicts the least recently used until there are num_bytes free. Pre: `room` is locked, so that
  /// unfinished segments are those of dead processes.
  void make_room(std::size_t num_bytes) const {
    for (const std::filesystem::path& path : paths_with(kUnfinishedPrefix)) ::unlink(path.c_str());
    std::vector<Segment> segments;
    std::size_t taken = 0;
    for (std::filesystem::path& path : paths_with(kFinishedPrefix)) {
      struct stat status {};
      if (::stat(path.c_str(), &status) != 0) continue;
      segments.push_back(
          {std::move(path), static_cast<std::size_t>(status.st_size), status.st_mtim});
      taken += segments.back().num_bytes;
    }
    std::sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) {
      return std::tie(a.used.tv_sec, a.used.tv_nsec) < std::tie(b.used.tv_sec, b.used.tv_nsec);
    });
    for (const Segment& segment : segments) {
      if (taken + num_bytes <= max_bytes_) return;
      ::unlink(segment.path.c_str());
      taken -= segment.num_bytes;
    }
  }

  /// Pre: `room` is locked.
  [[nodiscard]] Result<void> write(const std::filesystem::path& path, const std::string& key,
                                   const OutputShape& shape, std::span<const float> values) const {
    const std::filesystem::path unfinished =
        folder_ / (kUnfinishedPrefix + path.filename().string());
    const FileDescriptor file(::open(unfinished.c_str(),
                                     O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                                     S_IRUSR | S_IWUSR));
    if (!file.valid()) return segment_error("write", unfinished);
    const SegmentHeader header{.magic = kSegmentMagic,
                               .num_rows = shape.num_rows,
                               .hidden_size = shape.hidden_size,
                               .key_bytes = key.size()};
    const bool written = write_all(file.get(), std::as_bytes(std::span(&header, 1)), 0) &&
                         write_all(file.get(), std::as_bytes(std::span(key)), sizeof(header)) &&
                         write_all(file.get(), std::as_bytes(values), values_offset(key.size())) &&
                         ::rename(unfinished.c_str(), path.c_str()) == 0;
    if (written) return {};
    const Error error = segment_error("write", unfinished);
    ::unlink(unfinished.c_str());
    return error;
  }

  std::filesystem::path folder_;
  std::size_t max_bytes_;
  std::string encoder_key_;
  FileDescriptor users_;
  FileDescriptor room_;
};

/// It becomes a part of a folder's name.
bool is_pool_name(const std::string& name) {
  constexpr std::size_t kMaxSize = 64;
  return name.size() <= kMaxSize && std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_';
         });
}

}  // namespace

Result<std::shared_ptr<OutputStore>> open_shared_memory_store(const ECConnectorContext& context) {
  ConnectorExtraConfig extra(ConnectorKind::kEC, context.config);
  ASSIGN_OR_RETURN(const std::string pool, extra.take_text("pool", "default"));
  ASSIGN_OR_RETURN(const std::string directory, extra.take_text("directory", "/dev/shm"));
  RETURN_IF_ERROR(extra.take_seconds(kLookupTimeoutKey, 0));
  RETURN_IF_ERROR(extra.check_empty());
  if (!is_pool_name(pool))
    return invalid_argument(
        "ec-transfer-config: ec_connector_extra_config: pool must be at most 64 letters, digits, - "
        "and _, it is \"" +
            pool + "\"",
        "ec-transfer-config");
  const std::filesystem::path folder =
      std::filesystem::path(directory) / ("troupe-ec-" + std::to_string(::geteuid()) + "-" + pool);
  const auto store = std::make_shared<SharedMemoryStore>(
      folder, static_cast<std::size_t>(context.config.buffer_size), context.encoder_key);
  RETURN_IF_ERROR(store->open());
  return std::shared_ptr<OutputStore>(store);
}

}  // namespace troupe
