#include "runtime/http/kept_streams.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <tuple>
#include <utility>

#include "messages/wire.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/file_lock.hpp"
#include "runtime/base/hash.hpp"

namespace troupe {
namespace {

constexpr std::string_view kPrefix = "stream-";
constexpr std::string_view kUnfinished = ".new";
constexpr std::size_t kNumDigits = 32;
/// Marks the folder as a server's, and records whether the server created it.
constexpr char kMark[] = ".troupe-streams";
constexpr std::string_view kMade = "made\n";
constexpr std::string_view kFound = "found\n";

Error io_error(const std::string& what) {
  return {ErrorCode::kIo, what + ": " + std::strerror(errno), "resume-directory"};
}

/// Ids may be chosen by clients, so they are not used as paths.
std::string file_name(std::string_view id) { return std::string(kPrefix) + to_hex(xxh3_128(id)); }

/// Whether the name has the form of file_name, possibly of an unfinished file.
bool is_own(std::string_view name) {
  if (name.ends_with(kUnfinished)) name.remove_suffix(kUnfinished.size());
  return name.size() == kPrefix.size() + kNumDigits && name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string_view::npos;
}

/// Excludes "." and "..".
Result<std::vector<std::string>> names_in(int folder, const std::string& name) {
  const int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(again < 0 ? nullptr : fdopendir(again),
                                                    &closedir);
  if (entries == nullptr) return io_error("cannot read " + name);
  std::vector<std::string> names;
  while (const dirent* entry = readdir(entries.get())) {
    const std::string_view found = entry->d_name;
    if (found != "." && found != "..") names.emplace_back(found);
  }
  return names;
}

/// Creates the file with all bytes; leaves no file on failure.
Result<void> write_file(int folder, const std::string& name, std::string_view bytes,
                        const std::string& shown) {
  const FileDescriptor file(openat(folder, name.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                                   S_IRUSR | S_IWUSR));
  if (!file.valid()) return io_error("cannot create " + shown);
  if (write_all(file.get(), std::as_bytes(std::span(bytes)), 0)) return {};
  Error error = io_error("cannot write " + shown);
  unlinkat(folder, name.c_str(), 0);
  return error;
}

/// True if a server created the folder, false if it was found empty. Error: it is not a server's.
Result<bool> claim(int folder, const std::string& name, bool is_new) {
  const FileDescriptor mark(openat(folder, kMark, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (mark.valid()) {
    std::array<char, kMade.size()> text;
    const ssize_t size = read(mark.get(), text.data(), text.size());
    return size == static_cast<ssize_t>(kMade.size()) &&
           std::string_view(text.data(), text.size()) == kMade;
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> names, names_in(folder, name));
  if (!names.empty()) {
    const std::string& other = *std::min_element(names.begin(), names.end());
    return invalid_argument(
        name + " has '" + other + "' but no " + kMark +
            ": it is not a server's folder, give one that is empty or does not exist",
        "resume-directory");
  }
  RETURN_IF_ERROR(write_file(folder, kMark, is_new ? kMade : kFound, name + "/" + kMark));
  return is_new;
}

}  // namespace

Result<std::unique_ptr<KeptStreams>> KeptStreams::open(const std::filesystem::path& directory,
                                                       const Limits& limits, double now) {
  const std::string name = "resume-directory " + directory.string();
  const bool is_new = mkdir(directory.c_str(), S_IRWXU) == 0;
  if (!is_new && errno != EEXIST) return io_error("cannot create " + name);
  FileDescriptor folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!folder.valid() || fstat(folder.get(), &status) != 0) return io_error("cannot open " + name);
  if (status.st_uid != geteuid() || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Error{ErrorCode::kIo, name + " is accessible to other users", "resume-directory"};
  }
  if (!lock_file(folder, LOCK_EX | LOCK_NB)) return io_error(name + " is in use by another server");
  ASSIGN_OR_RETURN(const bool is_made, claim(folder.get(), name, is_new));
  std::unique_ptr<KeptStreams> streams(
      new KeptStreams(directory, limits, std::move(folder), is_made));
  RETURN_IF_ERROR(streams->read_folder(now));
  return streams;
}

Result<void> KeptStreams::read_folder(double now) {
  struct Found {
    timespec time;
    std::string name;
    std::size_t num_bytes;
  };
  std::vector<Found> found;
  ASSIGN_OR_RETURN(const std::vector<std::string> names,
                   names_in(folder_.get(), directory_.string()));
  for (const std::string& name : names) {
    struct stat status {};
    if (!is_own(name) || fstatat(folder_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(status.st_mode))
      continue;
    if (name.ends_with(kUnfinished)) {
      unlinkat(folder_.get(), name.c_str(), 0);
    } else {
      found.push_back({status.st_mtim, name, static_cast<std::size_t>(status.st_size)});
    }
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::tie(a.time.tv_sec, a.time.tv_nsec, a.name) <
           std::tie(b.time.tv_sec, b.time.tv_nsec, b.name);
  });
  for (const Found& file : found) {
    num_bytes_ += file.num_bytes;
    end(entries_.emplace(file.name, Entry{.num_bytes = file.num_bytes}).first, now);
  }
  (void)make_room(0);
  return {};
}

Result<void> KeptStreams::keep(const KeptStream& stream, double now) {
  std::vector<char> bytes;
  wire::encode(stream, bytes);
  const std::string name = file_name(stream.id);
  const std::lock_guard lock(mutex_);
  if (handed_over_)
    return Error{ErrorCode::kOverloaded, "streams are stored by the server that replaces this one",
                 ""};
  remove_expired(now);
  // Ids are random: an existing one belongs to another stream, which is not replaced.
  if (entries_.contains(name))
    return Error{ErrorCode::kOverloaded, "a stream with the id " + stream.id + " exists already",
                 "id"};
  if (!make_room(bytes.size())) {
    return Error{ErrorCode::kOverloaded,
                 "no room for a stream of " + std::to_string(bytes.size()) +
                     " bytes: " + std::to_string(entries_.size()) + " stored streams have " +
                     std::to_string(num_bytes_) + " bytes, at most " +
                     std::to_string(limits_.max_streams) + " streams and " +
                     std::to_string(limits_.max_bytes) + " bytes are allowed",
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
                 "no stream " + std::string(id.substr(0, 256)) + "; the last " +
                     std::to_string(limits_.max_streams) + " are stored, " +
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

void KeptStreams::hand_over() {
  const std::lock_guard lock(mutex_);
  handed_over_ = true;
  entries_.clear();
  ended_.clear();
  num_bytes_ = 0;
  lock_file(folder_, LOCK_UN);
}

void KeptStreams::remove_all() {
  const std::lock_guard lock(mutex_);
  if (handed_over_) return;
  for (const auto& [name, entry] : entries_) unlinkat(folder_.get(), name.c_str(), 0);
  entries_.clear();
  ended_.clear();
  num_bytes_ = 0;
  const auto left = names_in(folder_.get(), directory_.string());
  if (!is_made_ || !left.ok() || *left != std::vector<std::string>{kMark}) return;
  unlinkat(folder_.get(), kMark, 0);
  rmdir(directory_.c_str());
}

void KeptStreams::run(Entry& entry) {
  if (entry.num_running++ == 0) ended_.erase(entry.place);
}

void KeptStreams::end(Entries::iterator entry, double now) {
  entry->second.ended_at = now;
  entry->second.place = ended_.insert(ended_.end(), entry->first);
}

void KeptStreams::remove(Entries::iterator entry) {
  unlinkat(folder_.get(), entry->first.c_str(), 0);
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

/// Makes room for one more of `num_bytes`; 0: only enforces the limits.
bool KeptStreams::make_room(std::size_t num_bytes) {
  if (num_bytes > limits_.max_bytes) return false;
  const std::size_t max_others = limits_.max_streams - (num_bytes > 0 ? 1 : 0);
  while (entries_.size() > max_others || num_bytes_ + num_bytes > limits_.max_bytes) {
    if (ended_.empty()) return false;
    remove(entries_.find(ended_.front()));
  }
  return true;
}

/// Writes atomically: the file exists completely or not at all.
Result<void> KeptStreams::write(const std::string& name, const std::vector<char>& bytes) const {
  const std::string unfinished = name + std::string(kUnfinished);
  const std::string shown = (directory_ / unfinished).string();
  RETURN_IF_ERROR(write_file(folder_.get(), unfinished, {bytes.data(), bytes.size()}, shown));
  if (renameat(folder_.get(), unfinished.c_str(), folder_.get(), name.c_str()) == 0) return {};
  Error error = io_error("cannot rename " + shown);
  unlinkat(folder_.get(), unfinished.c_str(), 0);
  return error;
}

}  // namespace troupe
