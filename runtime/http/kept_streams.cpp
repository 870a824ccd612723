#include "runtime/http/kept_streams.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "messages/wire.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/hash.hpp"

namespace troupe {
namespace {

constexpr std::string_view kUnfinished = ".new";

Error io_error(const std::string& what) {
  return {ErrorCode::kIo, what + ": " + std::strerror(errno), "resume-directory"};
}

/// Ids may be the clients' own: they do not become paths.
std::string file_name(std::string_view id) { return to_hex(xxh3_128(id)); }

}  // namespace

Result<std::unique_ptr<KeptStreams>> KeptStreams::open(const std::filesystem::path& directory,
                                                       const Limits& limits, double now) {
  const std::string name = "the folder of streams, " + directory.string();
  if (mkdir(directory.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    return io_error("cannot make " + name);
  FileDescriptor lock(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!lock.valid() || fstat(lock.get(), &status) != 0) return io_error("cannot open " + name);
  if (status.st_uid != geteuid() || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Error{ErrorCode::kIo, name + ", is open to other users", "resume-directory"};
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return io_error(name + ", is in use by another server");
  std::unique_ptr<KeptStreams> streams(new KeptStreams(directory, limits, std::move(lock)));
  streams->read_folder(now);
  return streams;
}

void KeptStreams::read_folder(double now) {
  using Found = std::pair<std::filesystem::file_time_type, std::string>;
  std::vector<Found> found;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(directory_, error)) {
    if (file.path().extension() == kUnfinished) {
      std::filesystem::remove(file.path(), error);
    } else {
      found.emplace_back(file.last_write_time(error), file.path().filename().string());
    }
  }
  std::sort(found.begin(), found.end());
  for (const auto& [time, name] : found) {
    const auto num_bytes = std::filesystem::file_size(directory_ / name, error);
    if (error) continue;
    const auto entry = entries_.emplace(name, Entry{.num_bytes = num_bytes}).first;
    num_bytes_ += num_bytes;
    end(entry, now);
  }
  (void)make_room(0);
}

Result<void> KeptStreams::keep(const KeptStream& stream, double now) {
  std::vector<char> bytes;
  wire::encode(stream, bytes);
  const std::string name = file_name(stream.id);
  const std::lock_guard lock(mutex_);
  remove_expired(now);
  const auto before = entries_.find(name);
  if (before != entries_.end()) {
    if (before->second.num_running > 0)
      return Error{ErrorCode::kOverloaded, "a stream with the id " + stream.id + " runs", "id"};
    remove(before);
  }
  if (!make_room(bytes.size())) {
    return Error{ErrorCode::kOverloaded,
                 "a stream of " + std::to_string(bytes.size()) + " bytes, beside " +
                     std::to_string(entries_.size()) + " that run with " +
                     std::to_string(num_bytes_) + " bytes: at most " +
                     std::to_string(limits_.max_streams) + " streams and " +
                     std::to_string(limits_.max_bytes) + " bytes are kept",
                 ""};
  }
  RETURN_IF_ERROR(write(name, bytes));
  entries_.emplace(name, Entry{.num_bytes = bytes.size(), .num_running = 1});
  num_bytes_ += bytes.size();
  return {};
}

Result<KeptStream> KeptStreams::resume(std::string_view id, std::string_view engine,
                                       std::uint32_t tenant, double now) {
  const std::string name = file_name(id);
  const std::lock_guard lock(mutex_);
  remove_expired(now);
  KeptStream stream;
  const auto found = entries_.find(name);
  bool is_there = found != entries_.end();
  if (is_there) {
    const auto bytes = read_file(directory_ / name, limits_.max_bytes);
    is_there = bytes.ok() && wire::decode(bytes->data(), bytes->size(), stream) &&
               stream.id == id && stream.engine == engine && stream.tenant == tenant;
  }
  if (!is_there) {
    return Error{ErrorCode::kNotFound,
                 "there is no stream " + std::string(id.substr(0, 256)) + "; the last " +
                     std::to_string(limits_.max_streams) + " are kept, " +
                     std::to_string(limits_.max_bytes) + " bytes of them, for " +
                     std::to_string(static_cast<std::int64_t>(limits_.ttl_s)) +
                     " s after their end",
                 "id"};
  }
  run(found->second);
  return stream;
}

void KeptStreams::release(std::string_view id, double now) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(file_name(id));
  if (found == entries_.end() || found->second.num_running == 0) return;  // all were removed
  if (--found->second.num_running == 0) end(found, now);
}

void KeptStreams::expire(double now) {
  const std::lock_guard lock(mutex_);
  remove_expired(now);
}

void KeptStreams::remove_all() {
  const std::lock_guard lock(mutex_);
  std::error_code ignored;
  for (const auto& [name, entry] : entries_) std::filesystem::remove(directory_ / name, ignored);
  entries_.clear();
  ended_.clear();
  num_bytes_ = 0;
  std::filesystem::remove(directory_, ignored);
}

void KeptStreams::run(Entry& entry) {
  if (entry.num_running++ == 0) ended_.erase(entry.place);
}

void KeptStreams::end(Entries::iterator entry, double now) {
  entry->second.ended_at = now;
  entry->second.place = ended_.insert(ended_.end(), entry->first);
}

void KeptStreams::remove(Entries::iterator entry) {
  std::error_code ignored;
  std::filesystem::remove(directory_ / entry->first, ignored);
  num_bytes_ -= entry->second.num_bytes;
  ended_.erase(entry->second.place);
  entries_.erase(entry);
}

void KeptStreams::remove_expired(double now) {
  while (!ended_.empty()) {
    const auto oldest = entries_.find(ended_.front());
    if (now < oldest->second.ended_at + limits_.ttl_s) return;
    remove(oldest);
  }
}

/// For one more, of so many bytes; 0: only what is there is to fit.
bool KeptStreams::make_room(std::size_t num_bytes) {
  if (num_bytes > limits_.max_bytes) return false;
  const std::size_t max_others = limits_.max_streams - (num_bytes > 0 ? 1 : 0);
  while (entries_.size() > max_others || num_bytes_ + num_bytes > limits_.max_bytes) {
    if (ended_.empty()) return false;
    remove(entries_.find(ended_.front()));
  }
  return true;
}

/// A file is there as a whole or not at all.
Result<void> KeptStreams::write(const std::string& name, const std::vector<char>& bytes) const {
  const std::filesystem::path path = directory_ / name;
  const std::string unfinished = path.string() + std::string(kUnfinished);
  const FileDescriptor file(
      ::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file.valid()) return io_error("cannot make " + unfinished);
  if (!write_all(file.get(), std::as_bytes(std::span(bytes)), 0))
    return io_error("cannot write " + unfinished);
  if (rename(unfinished.c_str(), path.c_str()) != 0) return io_error("cannot rename " + unfinished);
  return {};
}

}  // namespace troupe
