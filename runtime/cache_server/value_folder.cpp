#include "runtime/cache_server/value_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "runtime/base/file_lock.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".lm";
constexpr std::string_view kUnfinished = ".new";

bool read_exactly(int file, std::span<char> into, std::uint64_t offset) {
  while (!into.empty()) {
    const ssize_t count = ::pread(file, into.data(), into.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    into = into.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return true;
}

bool write_exactly(int file, std::span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

/// Of an open file. Errors: kIo, kCorrupt.
Result<CacheFileHead> read_head(int file, std::string& head) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return Error{ErrorCode::kIo, std::strerror(errno), {}};
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  head.resize(std::min<std::uint64_t>(file_bytes, kMaxCacheFileHead));
  if (!read_exactly(file, head, 0)) return Error{ErrorCode::kIo, std::strerror(errno), {}};
  auto parsed = parse_cache_file_head(head, file_bytes);
  if (parsed.ok()) head.resize(parsed->head_bytes);
  return parsed;
}

}  // namespace

Result<std::unique_ptr<CacheFolder>> CacheFolder::open(const std::string& path) {
  const auto failed = [&](ErrorCode code, const std::string& reason) {
    return Error{code, "directory " + path + ": " + reason, "directory"};
  };
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return failed(ErrorCode::kIo, error.message());
  FileDescriptor lock(::open((path + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return failed(ErrorCode::kIo, std::strerror(errno));
  if (!lock_file(lock, LOCK_EX | LOCK_NB))
    return failed(ErrorCode::kInvalidArgument, "another cache server uses it");
  return std::unique_ptr<CacheFolder>(new CacheFolder(path, std::move(lock)));
}

CacheFolder::~CacheFolder() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    reads_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<CacheFolder::Entry> CacheFolder::scan() {
  std::vector<std::pair<fs::file_time_type, Entry>> found;
  std::error_code error;
  for (fs::recursive_directory_iterator file(path_, error), end; !error && file != end;
       file.increment(error)) {
    const std::string name = file->path().filename().string();
    std::error_code ignored;
    if (name.ends_with(kUnfinished)) {
      fs::remove(file->path(), ignored);
      continue;
    }
    if (!name.ends_with(kSuffix)) continue;
    const FileDescriptor opened(::open(file->path().c_str(), O_RDONLY | O_CLOEXEC));
    std::string head;
    const auto parsed = read_head(opened.get(), head);
    const auto time = file->last_write_time(ignored);
    if (!parsed.ok() || path_of(parsed->key) != file->path().string()) {
      log_warning("a file of the cache is removed", kv("file", file->path().string()),
                  kv("reason", parsed.ok() ? "it is another key's" : parsed.error().message));
      fs::remove(file->path(), ignored);
      continue;
    }
    found.emplace_back(time, Entry{parsed->key, parsed->head_bytes + parsed->num_bytes});
  }
  std::ranges::sort(found, {}, &std::pair<fs::file_time_type, Entry>::first);
  std::vector<Entry> entries;
  entries.reserve(found.size());
  for (auto& [time, entry] : found) entries.push_back(std::move(entry));
  return entries;
}

void CacheFolder::start(Written written) {
  written_ = std::move(written);
  threads_.emplace_back([this] { run_writer(); });
  for (std::size_t i = 0; i < kNumReaders; ++i) threads_.emplace_back([this] { run_reader(); });
}

bool CacheFolder::write(const CacheKey& key, CacheValuePtr value) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_bytes_ != 0 && waiting_bytes_ + value->size() > kMaxWaitingBytes) return false;
    waiting_bytes_ += value->size();
    writes_.emplace_back(Write{key, std::move(value)});
  }
  changed_.notify_all();
  return true;
}

void CacheFolder::remove(const CacheKey& key) {
  {
    const std::lock_guard lock(mutex_);
    writes_.emplace_back(Removal{key});
  }
  changed_.notify_all();
}

void CacheFolder::read(const CacheKey& key, Read done) {
  {
    const std::lock_guard lock(mutex_);
    reads_.push_back({key, std::move(done)});
  }
  changed_.notify_all();
}

void CacheFolder::run_writer() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !writes_.empty(); });
    if (writes_.empty()) return;
    const auto job = std::move(writes_.front());
    writes_.pop_front();
    lock.unlock();
    const Write* const write = std::get_if<Write>(&job);
    if (write != nullptr)
      written_(write->key, write->value, write_file(*write));
    else
      ::unlink(path_of(std::get<Removal>(job).key).c_str());
    lock.lock();
    if (write != nullptr) waiting_bytes_ -= write->value->size();
  }
}

void CacheFolder::run_reader() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !reads_.empty(); });
    if (ends_) return;
    const Reading job = std::move(reads_.front());
    reads_.pop_front();
    lock.unlock();
    job.done(read_file(job.key));
    lock.lock();
  }
}

std::string CacheFolder::path_of(const CacheKey& key) const {
  const std::string name = to_hex(xxh3_128(key.owner + '\0' + key.key));
  return path_ + "/" + name.substr(0, 2) + "/" + name + std::string(kSuffix);
}

bool CacheFolder::write_file(const Write& write) const {
  const std::string path = path_of(write.key);
  const std::string unfinished = path + std::string(kUnfinished);
  std::error_code ignored;
  fs::create_directories(fs::path(path).parent_path(), ignored);
  const FileDescriptor file(
      ::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const bool written = file.valid() &&
                       write_exactly(file.get(), pack_cache_file_head(write.key, *write.value)) &&
                       write_exactly(file.get(), write.value->bytes()) &&
                       ::rename(unfinished.c_str(), path.c_str()) == 0;
  if (!written) {
    log_warning("a value cannot be written", kv("file", path), kv("reason", std::strerror(errno)));
    ::unlink(unfinished.c_str());
  }
  return written;
}

CacheValuePtr CacheFolder::read_file(const CacheKey& key) const {
  const std::string path = path_of(key);
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return nullptr;
  std::string head;
  const auto read = [&]() -> Result<CacheValuePtr> {
    ASSIGN_OR_RETURN(const CacheFileHead parsed, read_head(file.get(), head));
    if (parsed.key != key) return Error{ErrorCode::kCorrupt, "it is another key's", {}};
    auto value = std::make_shared<CacheValue>(parsed.info, parsed.num_bytes);
    if (!read_exactly(file.get(), value->bytes(), parsed.head_bytes))
      return Error{ErrorCode::kIo, "it was cut", {}};
    RETURN_IF_ERROR(check_cache_file(head, value->bytes()));
    return CacheValuePtr(std::move(value));
  }();
  if (!read.ok()) {
    log_warning("a file of the cache is removed", kv("file", path),
                kv("reason", read.error().message));
    ::unlink(path.c_str());
    return nullptr;
  }
  static_cast<void>(::futimens(file.get(), nullptr));  // it was used last, also after a restart
  return *read;
}

}  // namespace troupe
