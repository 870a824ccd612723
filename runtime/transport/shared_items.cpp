#include "runtime/transport/shared_items.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/file_lock.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"

namespace troupe {
namespace {

namespace ipc = boost::interprocess;
using namespace std::chrono_literals;

constexpr std::array<char, 8> kItemsMagic = {'T', 'r', 'o', 'u', 'p', 'e', 'M', '2'};
/// Of the mutex within the segment, and of the lock of its file.
constexpr auto kMutexDeadline = 1s;
constexpr auto kMutexPoll = 100us;
constexpr auto kFileDeadline = 5s;
constexpr std::size_t kBytesPerSlot = std::size_t{64} << 10;
constexpr std::uint64_t kMinSlots = 64;
constexpr std::uint64_t kMaxSlots = 16384;
constexpr std::size_t kItemAlignment = 64;
constexpr int kNoHolder = -1;

/// At the begin of the segment; the slots follow, then the ring.
/// Invariant: the items of slots [first, next) (modulo num_slots) lie in the ring, in this order.
struct RingHeader {
  std::array<char, 8> magic{};
  std::uint64_t id = 0;  ///< random
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

std::array<std::uint8_t, 16> key_of(const std::string& name) { return xxh3_128(name); }

Error items_error(const std::string& what, const std::filesystem::path& file) {
  return {ErrorCode::kIo, "cannot " + what + " " + file.string() + ": " + std::strerror(errno)};
}

/// A file as Boost.Interprocess's memory mappable.
struct MappableFile {
  int descriptor;
  [[nodiscard]] ipc::mapping_handle_t get_mapping_handle() const { return {descriptor, false}; }
  [[nodiscard]] ipc::mode_t get_mode() const { return ipc::read_write; }
};

/// The exclusive lock of one byte of a file.
struct flock lock_of_byte(int number) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = number;
  lock.l_len = 1;
  return lock;
}

/// Takes that lock, which ends with the process. False: another one has it.
bool try_lock_byte(const FileDescriptor& file, int number) {
  struct flock lock = lock_of_byte(number);
  return ::fcntl(file.get(), F_OFD_SETLK, &lock) == 0;
}

/// Whether somebody else has that lock.
bool is_byte_locked(const FileDescriptor& file, int number) {
  struct flock lock = lock_of_byte(number);
  return ::fcntl(file.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
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

struct SharedItems::Slot {
  std::array<std::uint8_t, 16> key{};
  std::uint64_t position = 0;  ///< in the ring, counted on and on
  std::uint64_t num_bytes = 0;
  std::uint64_t num_parts = 0;  ///< that it is the first of; 0: it is another part
  std::uint64_t holders = 0;    ///< who has pinned it: a bit for each number
  std::uint64_t is_gone = 0;    ///< it has no name any more
};

struct SharedItems::Segment {
  FileDescriptor file;
  std::optional<ipc::mapped_region> region;
  int holder = kNoHolder;
  // Those of the header, checked when it is opened: nothing that is read later leads outside.
  std::uint64_t num_slots = 0;
  std::uint64_t ring_offset = 0;
  std::uint64_t ring_bytes = 0;
  /// Until then the mutex, which could not be had, is only tried.
  std::atomic<std::chrono::steady_clock::time_point> not_waiting_before{};

  [[nodiscard]] char* bytes() const { return static_cast<char*>(region->get_address()); }
  [[nodiscard]] RingHeader& header() const {
    return *std::launder(reinterpret_cast<RingHeader*>(bytes()));
  }
  [[nodiscard]] Slot& slot(std::uint64_t number) const {
    auto* const slots = reinterpret_cast<Slot*>(bytes() + aligned(sizeof(RingHeader)));
    return *std::launder(slots + number % num_slots);
  }
  [[nodiscard]] char* data(std::uint64_t position) const {
    return bytes() + ring_offset + position % ring_bytes;
  }
  [[nodiscard]] bool is_in_ring(std::uint64_t position, std::uint64_t num_bytes) const {
    return num_bytes <= ring_bytes - position % ring_bytes;
  }
  /// The youngest one that `matches`; null: none.
  template <class Matches>
  [[nodiscard]] Slot* find_slot(Matches&& matches) const {
    const std::uint64_t first = header().first;
    const std::uint64_t next = header().next;
    if (next - first > num_slots) return nullptr;  // it is damaged
    for (std::uint64_t i = next; i != first; --i) {
      Slot& item = slot(i - 1);
      if (matches(item)) return is_in_ring(item.position, item.num_bytes) ? &item : nullptr;
    }
    return nullptr;
  }
  /// A copy of the item at an address, read without the mutex: as long as its slot is one of the
  /// ring's after that, nothing has been written in its place. Null: it is not there.
  [[nodiscard]] Bytes copy_unlocked(const SharedItemAddress& address) const {
    const std::atomic_ref<std::uint64_t> ring_first(header().first);
    const std::uint64_t first = ring_first.load(std::memory_order_acquire);
    const std::uint64_t next = std::atomic_ref(header().next).load(std::memory_order_acquire);
    if (next - first > num_slots || !is_in_ring(address.position, address.num_bytes))
      return nullptr;
    for (std::uint64_t i = first; i != next; ++i) {
      if (slot(i).position != address.position || slot(i).num_bytes != address.num_bytes) continue;
      const char* const begin = data(address.position);
      auto copy = std::make_shared<const std::vector<char>>(begin, begin + address.num_bytes);
      // Comes after the copy, as a fence would; the thread sanitizer knows no fences.
      const std::uint64_t past = ring_first.fetch_add(0, std::memory_order_acq_rel) - first;
      return past <= i - first ? copy : nullptr;
    }
    return nullptr;
  }
  [[nodiscard]] Slot* find(const std::string& name) const {
    const auto key = key_of(name);
    return find_slot([&](const Slot& item) { return item.is_gone == 0 && item.key == key; });
  }
  /// Drops the pins of those who have ended.
  [[nodiscard]] bool is_pinned(Slot& item) const {
    for (int number = 0; item.holders != 0 && number < int{kMaxHolders}; ++number) {
      const std::uint64_t bit = std::uint64_t{1} << number;
      if ((item.holders & bit) != 0 && number != holder && !is_byte_locked(file, number))
        item.holders &= ~bit;
    }
    return item.holders != 0;
  }
  void forget_all() const {
    RingHeader& ring = header();
    if (ring.next - ring.first > num_slots) ring.first = ring.next;  // it is damaged
    for (std::uint64_t i = ring.first; i != ring.next; ++i) slot(i).is_gone = 1;
    while (ring.first != ring.next && !is_pinned(slot(ring.first))) ++ring.first;
  }

  /// False: there is no room. Its stores are in such an order that the ring is whole after each of
  /// them: whoever does this may be killed. Pre: it is within the ring's size, and not there yet.
  [[nodiscard]] bool add(const std::string& name, std::span<const char> data_of_item,
                         std::uint64_t num_parts) const {
    RingHeader& ring = header();
    if (ring.next - ring.first > num_slots) return false;  // it is damaged
    const std::uint64_t num_bytes = aligned(data_of_item.size());
    std::uint64_t position = ring.end;
    const std::uint64_t left = ring_bytes - position % ring_bytes;
    if (num_bytes > left) position += left;  // an item is in one piece
    if (!is_in_ring(position, num_bytes)) return false;
    while (ring.first != ring.next &&
           (ring.next - ring.first == num_slots ||
            position + num_bytes - slot(ring.first).position > ring_bytes)) {
      if (is_pinned(slot(ring.first))) return false;
      ++ring.first;
    }
    // Without the memory, writing would end the process.
    const auto offset = ring_offset + position % ring_bytes;
    if (::posix_fallocate(file.get(), static_cast<off_t>(offset), static_cast<off_t>(num_bytes)) !=
        0)
      return false;
    Slot& item = slot(ring.next);
    item = {.key = key_of(name),
            .position = position,
            .num_bytes = data_of_item.size(),
            .num_parts = num_parts};
    std::memcpy(data(position), data_of_item.data(), data_of_item.size());
    std::atomic_signal_fence(std::memory_order_seq_cst);
    ring.end = position + num_bytes;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    ++ring.next;
    return true;
  }
};

/// Holds the segment's mutex, if it could be had.
class SharedItems::Lock {
 public:
  explicit Lock(Segment& segment) : segment_(segment) {
    // Not pthread_mutex_clocklock, which the thread sanitizer does not know. It is held for the
    // time of a copy.
    const auto begin = std::chrono::steady_clock::now();
    const auto deadline =
        begin < segment.not_waiting_before.load() ? begin : begin + kMutexDeadline;
    int result = pthread_mutex_trylock(&segment.header().mutex);
    while (result == EBUSY && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kMutexPoll);
      result = pthread_mutex_trylock(&segment.header().mutex);
    }
    if (result == EOWNERDEAD) {
      log_warning(
          "a process has died while it changed the cache of images, which forgets all of them");
      segment.forget_all();
      pthread_mutex_consistent(&segment.header().mutex);
    } else if (result != 0) {
      log_warning("the shared image cache is not used: its lock could not be had",
                  kv("error", std::strerror(result)));
      segment.not_waiting_before = std::chrono::steady_clock::now() + kMutexDeadline;
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
  Segment& segment_;
  bool held_ = false;
};

SharedItems::SharedItems(Options options)
    : options_(std::move(options)), segment_(std::make_unique<Segment>()) {}

SharedItems::~SharedItems() {
  // The last one removes it; a process that has opened it meanwhile detects that it was unlinked.
  if (segment_->file.valid() && lock_file(segment_->file, LOCK_EX | LOCK_NB))
    ::unlink(options_.file.c_str());
}

Result<std::shared_ptr<SharedItems>> SharedItems::open(Options options) {
  if (options.max_bytes < kMinBytes)
    return invalid_argument("a shared image cache has " + std::to_string(options.max_bytes) +
                                " bytes, at least " + std::to_string(kMinBytes) + " are needed",
                            "mm-processor-cache-gb");
  const auto deadline = std::chrono::steady_clock::now() + kFileDeadline;
  while (std::chrono::steady_clock::now() < deadline) {
    std::shared_ptr<SharedItems> items(new SharedItems(options));
    ASSIGN_OR_RETURN(const bool entered, items->enter(/*may_create=*/true));
    if (entered) {
      items->take_holder_number();
      return items;
    }
    items->segment_->file = FileDescriptor();  // it is not ours to remove
    std::this_thread::sleep_for(5ms);
  }
  return Error{ErrorCode::kTimeout,
               options.file.string() + " is locked by another process, or removed again and again"};
}

Result<std::shared_ptr<SharedItems>> SharedItems::open_for(const SharedItemAddress& address) {
  std::shared_ptr<SharedItems> items(new SharedItems({.file = address.file}));
  ASSIGN_OR_RETURN(const bool entered, items->enter(/*may_create=*/false));
  if (!entered || items->segment_->header().id != address.segment) {
    items->segment_->file = FileDescriptor();  // it is not ours to remove
    return Error{ErrorCode::kNotFound,
                 "the shared image cache " + address.file + " is another one (by now)"};
  }
  items->take_holder_number();
  return items;
}

Result<bool> SharedItems::enter(bool may_create) {
  Segment& segment = *segment_;
  segment.file = FileDescriptor(::open(options_.file.c_str(),
                                       O_RDWR | (may_create ? O_CREAT : 0) | O_CLOEXEC | O_NOFOLLOW,
                                       S_IRUSR | S_IWUSR));
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
  const bool is_first = may_create && lock_file(segment.file, LOCK_EX | LOCK_NB);
  if (is_first) {
    std::error_code error;
    const auto space = std::filesystem::space(options_.file.parent_path(), error);
    std::size_t max_bytes = options_.max_bytes;
    if (!error)
      max_bytes = std::min<std::size_t>(max_bytes, std::max(space.available / 2, kMinBytes));
    if (max_bytes < options_.max_bytes)
      log_warning(
          "the shared image cache is smaller than mm-processor-cache-gb says: there "
          "is no more memory",
          kv("file", options_.file.string()), kv("bytes", max_bytes));
    fresh.id = random_bits();
    fresh.num_slots = std::clamp<std::uint64_t>(max_bytes / kBytesPerSlot, kMinSlots, kMaxSlots);
    fresh.ring_offset = aligned(aligned(sizeof(RingHeader)) + fresh.num_slots * sizeof(Slot));
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
  } else if (!lock_file(segment.file, LOCK_SH | LOCK_NB)) {
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
  }
  const RingHeader& header = segment.header();
  segment.num_slots = header.num_slots;
  segment.ring_offset = header.ring_offset;
  segment.ring_bytes = header.ring_bytes;
  if (is_first) return lock_file(segment.file, LOCK_SH | LOCK_NB);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  return header.magic == kItemsMagic && segment.num_slots > 0 && segment.num_slots <= kMaxSlots &&
         segment.ring_offset >= aligned(sizeof(RingHeader)) + segment.num_slots * sizeof(Slot) &&
         segment.ring_bytes > 0 && segment.ring_offset <= size &&
         segment.ring_bytes <= size - segment.ring_offset;
}

void SharedItems::take_holder_number() {
  int number = 0;
  while (number < int{kMaxHolders} && !try_lock_byte(segment_->file, number)) ++number;
  const Lock lock(*segment_);
  if (!lock || number == int{kMaxHolders}) return;
  // Pins of an earlier holder with this number.
  for (std::uint64_t i = 0; i < segment_->num_slots; ++i)
    segment_->slot(i).holders &= ~(std::uint64_t{1} << number);
  segment_->holder = number;
}

std::size_t SharedItems::num_parts(const std::string& name) {
  const Lock lock(*segment_);
  const Slot* const first = lock ? segment_->find(name) : nullptr;
  return first == nullptr || first->num_parts > segment_->num_slots ? 0 : first->num_parts;
}

bool SharedItems::has(const std::string& name) {
  const Lock lock(*segment_);
  return lock && segment_->find(name) != nullptr;
}

SharedItems::Bytes SharedItems::find(const std::string& name) {
  const Lock lock(*segment_);
  const Slot* const item = lock ? segment_->find(name) : nullptr;
  if (item == nullptr) return nullptr;
  const char* const begin = segment_->data(item->position);
  return std::make_shared<const std::vector<char>>(begin, begin + item->num_bytes);
}

void SharedItems::keep(std::span<const std::string> names, std::span<const Bytes> parts) {
  std::size_t num_bytes = 0;
  for (const Bytes& part : parts) {
    if (part->size() > options_.max_object_bytes) return;
    num_bytes += aligned(part->size());
  }
  const Lock lock(*segment_);
  if (!lock || num_bytes > segment_->ring_bytes / 2) return;
  for (std::size_t part = 0; part < parts.size(); ++part)
    if (segment_->find(names[part]) == nullptr &&
        !segment_->add(names[part], *parts[part], part == 0 ? parts.size() : 0))
      return;
}

void SharedItems::clear() {
  const Lock lock(*segment_);
  if (lock) segment_->forget_all();
}

SharedItems::Pinned SharedItems::pin(Slot& slot) {
  const std::uint64_t position = slot.position;
  slot.holders |= std::uint64_t{1} << segment_->holder;
  if (++pins_[position] == 1) pinned_bytes_ += slot.num_bytes;
  return {.address = {.segment = segment_->header().id,
                      .position = position,
                      .num_bytes = slot.num_bytes,
                      .file = options_.file},
          .bytes = {segment_->data(position), slot.num_bytes},
          .pin = std::shared_ptr<const void>(
              segment_.get(), [items = shared_from_this(), position, num_bytes = slot.num_bytes](
                                  const void*) { items->unpin(position, num_bytes); })};
}

std::optional<SharedItems::Pinned> SharedItems::pin(const std::string& name) {
  const Lock lock(*segment_);
  if (!lock || segment_->holder == kNoHolder) return std::nullopt;
  Slot* const item = segment_->find(name);
  if (item == nullptr) return std::nullopt;
  const std::lock_guard pins_lock(pins_mutex_);
  if (!pins_.contains(item->position) && pinned_bytes_ + item->num_bytes > segment_->ring_bytes / 2)
    return std::nullopt;
  return pin(*item);
}

std::optional<SharedItems::Pinned> SharedItems::pin(const SharedItemAddress& address) {
  const Lock lock(*segment_);
  if (segment_->header().id != address.segment) return std::nullopt;
  if (!lock || segment_->holder == kNoHolder) {
    const Bytes copy = segment_->copy_unlocked(address);
    if (copy == nullptr) return std::nullopt;
    return Pinned{.address = address, .bytes = *copy, .pin = copy};
  }
  Slot* const item = segment_->find_slot([&](const Slot& each) {
    return each.position == address.position && each.num_bytes == address.num_bytes;
  });
  if (item == nullptr) return std::nullopt;
  const std::lock_guard pins_lock(pins_mutex_);
  return pin(*item);
}

void SharedItems::unpin(std::uint64_t position, std::size_t num_bytes) {
  // Without the segment's lock the pin stays until this holder ends.
  const Lock lock(*segment_);
  const std::lock_guard pins_lock(pins_mutex_);
  const auto pinned = pins_.find(position);
  if (--pinned->second > 0) return;
  pins_.erase(pinned);
  pinned_bytes_ -= num_bytes;
  if (!lock) return;
  Slot* const item =
      segment_->find_slot([&](const Slot& each) { return each.position == position; });
  if (item != nullptr) item->holders &= ~(std::uint64_t{1} << segment_->holder);
}

Result<SharedItems::Pinned> SharedItemReader::read(const SharedItemAddress& address) {
  if (items_ == nullptr || segment_ != address.segment) {
    ASSIGN_OR_RETURN(items_, SharedItems::open_for(address));
    segment_ = address.segment;
  }
  auto pinned = items_->pin(address);
  if (!pinned)
    return Error{ErrorCode::kNotFound,
                 "the shared image cache in " + address.file + " does not have it (any more)"};
  return *std::move(pinned);
}

}  // namespace troupe
