#include "runtime/multimodal/shared_items.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"

namespace troupe {
namespace {

namespace ipc = boost::interprocess;
using namespace std::chrono_literals;

constexpr std::array<char, 8> kItemsMagic = {'T', 'r', 'o', 'u', 'p', 'e', 'M', '1'};
/// Of the mutex within the segment, and of the lock of its file.
constexpr auto kMutexDeadline = 1s;
constexpr auto kMutexPoll = 100us;
constexpr auto kFileDeadline = 5s;
constexpr std::size_t kBytesPerSlot = std::size_t{64} << 10;
constexpr std::uint64_t kMinSlots = 64;
constexpr std::uint64_t kMaxSlots = 16384;
constexpr std::size_t kItemAlignment = 64;

struct ItemSlot {
  std::array<std::uint8_t, 16> key{};
  std::uint64_t position = 0;  ///< in the ring, counted on and on
  std::uint64_t num_bytes = 0;
  std::uint64_t num_parts = 0;  ///< of the picture, whose first item it is; 0: it is another part
};

/// At the begin of the segment; the slots follow, then the ring.
/// Invariant: the items of slots [first, next) (modulo num_slots) lie in the ring, in this order.
struct RingHeader {
  std::array<char, 8> magic{};
  std::uint64_t num_slots = 0;
  std::uint64_t ring_offset = 0;
  std::uint64_t ring_bytes = 0;
  pthread_mutex_t mutex;
  std::uint64_t first = 0;
  std::uint64_t next = 0;
  std::uint64_t end = 0;  ///< position behind the youngest item
};

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kItemAlignment - 1) / kItemAlignment * kItemAlignment;
}

std::array<std::uint8_t, 16> key_of(const std::string& item_identifier) {
  return xxh3_128(item_identifier);
}

Error items_error(const std::string& what, const std::filesystem::path& file) {
  return {ErrorCode::kIo, "cannot " + what + " " + file.string() + ": " + std::strerror(errno)};
}

/// A file as Boost.Interprocess's memory mappable.
struct MappableFile {
  int descriptor;
  [[nodiscard]] ipc::mapping_handle_t get_mapping_handle() const { return {descriptor, false}; }
  [[nodiscard]] ipc::mode_t get_mode() const { return ipc::read_write; }
};

/// The lock of a file, which ends with the process. False: another process has it.
bool try_flock(const FileDescriptor& file, int how) {
  int result = 0;
  do {
    result = ::flock(file.get(), how | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

bool make_mutex(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  if (pthread_mutexattr_init(&attributes) != 0) return false;
  const bool made = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
                    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 &&
                    pthread_mutex_init(&mutex, &attributes) == 0;
  pthread_mutexattr_destroy(&attributes);
  return made;
}

}  // namespace

struct SharedItems::Segment {
  FileDescriptor file;
  std::optional<ipc::mapped_region> region;

  [[nodiscard]] char* bytes() const { return static_cast<char*>(region->get_address()); }
  [[nodiscard]] RingHeader& header() const {
    return *std::launder(reinterpret_cast<RingHeader*>(bytes()));
  }
  [[nodiscard]] ItemSlot& slot(std::uint64_t number) const {
    auto* const slots = reinterpret_cast<ItemSlot*>(bytes() + aligned(sizeof(RingHeader)));
    return *std::launder(slots + number % header().num_slots);
  }
  [[nodiscard]] char* data(const ItemSlot& item) const {
    return bytes() + header().ring_offset + item.position % header().ring_bytes;
  }
  [[nodiscard]] const ItemSlot* find(const std::string& item_identifier) const {
    const auto key = key_of(item_identifier);
    for (std::uint64_t i = header().next; i > header().first; --i)
      if (slot(i - 1).key == key) return &slot(i - 1);
    return nullptr;
  }
  void empty() const { header().first = header().next; }

  /// Pre: it is within the ring's size, and not there yet.
  void add(const std::string& item_identifier, std::span<const char> data_of_item,
           std::uint64_t num_parts) const {
    RingHeader& ring = header();
    const std::uint64_t num_bytes = aligned(data_of_item.size());
    std::uint64_t position = ring.end;
    const std::uint64_t left = ring.ring_bytes - position % ring.ring_bytes;
    if (num_bytes > left) position += left;  // an item is in one piece
    while (ring.first < ring.next &&
           (ring.next - ring.first == ring.num_slots ||
            position + num_bytes - slot(ring.first).position > ring.ring_bytes))
      ++ring.first;
    const ItemSlot item{key_of(item_identifier), position, data_of_item.size(), num_parts};
    // Without the memory, writing would end the process.
    const auto offset = ring.ring_offset + position % ring.ring_bytes;
    if (::posix_fallocate(file.get(), static_cast<off_t>(offset), static_cast<off_t>(num_bytes)) !=
        0)
      return;
    std::memcpy(data(item), data_of_item.data(), data_of_item.size());
    slot(ring.next) = item;
    ++ring.next;
    ring.end = position + num_bytes;
  }
};

/// Holds the segment's mutex, if it could be had.
class SharedItems::Lock {
 public:
  explicit Lock(const Segment& segment) : segment_(segment) {
    // Not pthread_mutex_clocklock, which the thread sanitizer does not know. It is held for the
    // time of a copy.
    const auto deadline = std::chrono::steady_clock::now() + kMutexDeadline;
    int result = pthread_mutex_trylock(&segment.header().mutex);
    while (result == EBUSY && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kMutexPoll);
      result = pthread_mutex_trylock(&segment.header().mutex);
    }
    if (result == EOWNERDEAD) {
      log_warning("a process has died while it changed the cache of pictures, which is emptied");
      segment.empty();
      pthread_mutex_consistent(&segment.header().mutex);
    } else if (result != 0) {
      log_warning("the shared cache of pictures is not used: its lock could not be had",
                  kv("error", std::strerror(result)));
      return;
    }
    held_ = true;
  }
  ~Lock() {
    if (held_) pthread_mutex_unlock(&segment_.header().mutex);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  explicit operator bool() const noexcept { return held_; }

 private:
  const Segment& segment_;
  bool held_ = false;
};

SharedItems::SharedItems(Options options)
    : options_(std::move(options)), segment_(std::make_unique<Segment>()) {}

SharedItems::~SharedItems() {
  // The last one removes it; a process that has opened it meanwhile detects that it was unlinked.
  if (segment_->file.valid() && try_flock(segment_->file, LOCK_EX)) ::unlink(options_.file.c_str());
}

Result<std::shared_ptr<SharedItems>> SharedItems::open(Options options) {
  if (options.max_bytes < kMinBytes)
    return invalid_argument("a shared cache of pictures has " + std::to_string(options.max_bytes) +
                                " bytes, at least " + std::to_string(kMinBytes) + " are needed",
                            "mm-processor-cache-gb");
  const auto deadline = std::chrono::steady_clock::now() + kFileDeadline;
  while (std::chrono::steady_clock::now() < deadline) {
    std::shared_ptr<SharedItems> items(new SharedItems(options));
    ASSIGN_OR_RETURN(const bool entered, items->enter());
    if (entered) return items;
    items->segment_->file = FileDescriptor();  // it is not ours to remove
    std::this_thread::sleep_for(5ms);
  }
  return Error{ErrorCode::kTimeout,
               options.file.string() + " is locked by another process, or removed again and again"};
}

Result<bool> SharedItems::enter() {
  Segment& segment = *segment_;
  segment.file = FileDescriptor(
      ::open(options_.file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  if (!segment.file.valid()) return items_error("open", options_.file);
  struct stat status {};
  if (::fstat(segment.file.get(), &status) != 0) return items_error("read", options_.file);
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid() ||
      (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    segment.file = FileDescriptor();
    return Error{ErrorCode::kIo,
                 options_.file.string() + " is not a file of this user that is closed to others"};
  }
  RingHeader fresh;
  const bool is_first = try_flock(segment.file, LOCK_EX);
  if (is_first) {
    std::error_code error;
    const auto space = std::filesystem::space(options_.file.parent_path(), error);
    std::size_t max_bytes = options_.max_bytes;
    if (!error)
      max_bytes = std::min<std::size_t>(max_bytes, std::max(space.available / 2, kMinBytes));
    if (max_bytes < options_.max_bytes)
      log_warning(
          "the shared cache of pictures is smaller than mm-processor-cache-gb says: there "
          "is no more memory",
          kv("file", options_.file.string()), kv("bytes", max_bytes));
    fresh.num_slots = std::clamp<std::uint64_t>(max_bytes / kBytesPerSlot, kMinSlots, kMaxSlots);
    fresh.ring_offset = aligned(aligned(sizeof(RingHeader)) + fresh.num_slots * sizeof(ItemSlot));
    fresh.ring_bytes = (max_bytes - fresh.ring_offset) / kItemAlignment * kItemAlignment;
    const auto num_bytes = static_cast<off_t>(fresh.ring_offset + fresh.ring_bytes);
    if (::ftruncate(segment.file.get(), 0) != 0 || ::ftruncate(segment.file.get(), num_bytes) != 0)
      return items_error("make", options_.file);
    if (const int failed =
            ::posix_fallocate(segment.file.get(), 0, static_cast<off_t>(fresh.ring_offset));
        failed != 0) {
      errno = failed;
      return items_error("make", options_.file);
    }
  } else if (!try_flock(segment.file, LOCK_SH)) {
    return false;  // it is being made
  }
  if (::fstat(segment.file.get(), &status) != 0) return items_error("read", options_.file);
  if (status.st_nlink == 0 || static_cast<std::size_t>(status.st_size) < kMinBytes) return false;
  try {
    segment.region.emplace(MappableFile{segment.file.get()}, ipc::read_write, 0,
                           static_cast<std::size_t>(status.st_size));
  } catch (const ipc::interprocess_exception& error) {
    errno = error.get_native_error();
    return items_error("map", options_.file);
  }
  if (is_first) {
    auto* const header = new (segment.bytes()) RingHeader(fresh);
    if (!make_mutex(header->mutex)) return items_error("make the lock of", options_.file);
    header->magic = kItemsMagic;
    return try_flock(segment.file, LOCK_SH);
  }
  const RingHeader& header = segment.header();
  return header.magic == kItemsMagic && header.num_slots > 0 &&
         header.ring_offset + header.ring_bytes <= static_cast<std::size_t>(status.st_size);
}

std::size_t SharedItems::num_parts(const std::string& identifier) {
  const Lock lock(*segment_);
  if (!lock) return 0;
  const ItemSlot* const first = segment_->find(identifier);
  if (first == nullptr) return 0;
  for (std::size_t part = 1; part < first->num_parts; ++part)
    if (segment_->find(part_identifier(identifier, part)) == nullptr) return 0;
  return first->num_parts;
}

ItemData SharedItems::find(const std::string& item_identifier) {
  const Lock lock(*segment_);
  if (!lock) return nullptr;
  const ItemSlot* const item = segment_->find(item_identifier);
  if (item == nullptr) return nullptr;
  const char* const begin = segment_->data(*item);
  return std::make_shared<const std::vector<char>>(begin, begin + item->num_bytes);
}

void SharedItems::keep(const std::string& identifier, const std::vector<ItemData>& parts) {
  std::size_t num_bytes = 0;
  for (const ItemData& part : parts) {
    if (part->size() > options_.max_object_bytes) return;
    num_bytes += aligned(part->size());
  }
  const Lock lock(*segment_);
  if (!lock || num_bytes > segment_->header().ring_bytes / 2) return;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const std::string name = part_identifier(identifier, part);
    if (segment_->find(name) == nullptr)
      segment_->add(name, *parts[part], part == 0 ? parts.size() : 0);
  }
}

void SharedItems::clear() {
  const Lock lock(*segment_);
  if (lock) segment_->empty();
}

}  // namespace troupe
