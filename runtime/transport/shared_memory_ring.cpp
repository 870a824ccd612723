#include "runtime/transport/shared_memory_ring.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <charconv>
#include <new>
#include <system_error>
#include <utility>

#include "runtime/base/futex.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using Word = FutexWord;

// The low bits of head and tail; the rest counts chunks.
constexpr std::uint32_t kClosed = 1;
constexpr std::uint32_t kDetached = 2;
constexpr std::uint32_t kBits = kClosed | kDetached;
constexpr std::uint32_t kChunk = 4;

constexpr std::uint32_t kFirst = 1;  ///< the chunk begins a message
constexpr std::uint32_t kLast = 2;   ///< the chunk ends one

constexpr std::uint64_t kMagic = 0x676e697270757274;  // "trupring"
constexpr std::uint32_t kLayout = 1;
constexpr std::size_t kPage = 4096;
constexpr auto kLookInterval = 100ms;

void pause_cpu() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

[[nodiscard]] Error system_error(const std::string& what, int error) {
  return {ErrorCode::kIo, what + ": " + std::system_category().message(error)};
}

struct RingName {
  std::int32_t pid = 0;
  std::int32_t fd = 0;
  std::uint64_t token = 0;
};

[[nodiscard]] std::string to_text(const RingName& name) {
  std::array<char, 16> token;
  const auto [end, code] = std::to_chars(token.data(), token.data() + token.size(), name.token, 16);
  return "ring:" + std::to_string(name.pid) + ":" + std::to_string(name.fd) + ":" +
         std::string(token.data(), end);
}

[[nodiscard]] std::optional<RingName> parse_name(std::string_view text) {
  constexpr std::string_view kPrefix = "ring:";
  if (!text.starts_with(kPrefix)) return std::nullopt;
  const char* next = text.data() + kPrefix.size();
  const char* const end = text.data() + text.size();
  const auto number = [&](auto& value, int base, bool last) {
    const auto [stop, code] = std::from_chars(next, end, value, base);
    if (code != std::errc{} || (last ? stop != end : stop == end || *stop != ':')) return false;
    next = stop + 1;
    return true;
  };
  RingName name;
  if (!number(name.pid, 10, false) || !number(name.fd, 10, false) || !number(name.token, 16, true))
    return std::nullopt;
  if (name.pid <= 0 || name.fd < 0) return std::nullopt;
  return name;
}

}  // namespace

struct SharedMemoryRing::Header {
  /// Written once, before the segment is shared.
  struct Identity {
    std::uint64_t magic;
    std::uint32_t layout;
    std::uint32_t num_readers;
    std::uint32_t num_chunks;
    std::uint32_t unused;
    std::uint64_t chunk_bytes;
    std::uint64_t token;
    char build_id[64];
  };
  Identity identity;
  alignas(64) Word head;
  std::atomic<std::int32_t> writer_pid;
  alignas(64) Word writer_waits;  ///< 1: wake threads that wait for a tail
};

struct alignas(64) SharedMemoryRing::ReaderCell {
  Word tail;
  Word waits;  ///< 1: wake threads that wait for head
  std::atomic<std::int32_t> pid;
};

/// Owned by the writer until the chunk is published, then by the readers.
struct alignas(64) SharedMemoryRing::ChunkCell {
  std::uint64_t size;
  std::uint32_t flags;
};

int default_ring_spins(unsigned num_waiting) noexcept {
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) return 0;
  constexpr int kSpins = 1000;  // tens of microseconds
  return num_waiting + 2 > static_cast<unsigned>(CPU_COUNT(&cores)) ? 0 : kSpins;
}

// ---- The segment ------------------------------------------------------------------------------

SharedMemoryRing::Header& SharedMemoryRing::header() const noexcept {
  return *reinterpret_cast<Header*>(base_);
}
SharedMemoryRing::ReaderCell& SharedMemoryRing::reader(std::uint32_t index) const noexcept {
  return reinterpret_cast<ReaderCell*>(base_ + sizeof(Header))[index];
}
SharedMemoryRing::ChunkCell& SharedMemoryRing::chunk_cell(std::uint32_t position) const noexcept {
  char* cells = base_ + sizeof(Header) + num_readers_ * sizeof(ReaderCell);
  return reinterpret_cast<ChunkCell*>(cells)[position / kChunk % num_chunks_];
}
char* SharedMemoryRing::chunk(std::uint32_t position) const noexcept {
  return base_ + mapped_bytes_ - num_chunks_ * chunk_bytes_ +
         position / kChunk % num_chunks_ * chunk_bytes_;
}

std::size_t SharedMemoryRing::segment_bytes(std::uint32_t num_readers, std::uint32_t num_chunks,
                                            std::uint64_t chunk_bytes) noexcept {
  const std::size_t cells =
      sizeof(Header) + num_readers * sizeof(ReaderCell) + num_chunks * sizeof(ChunkCell);
  return (cells + kPage - 1) / kPage * kPage + num_chunks * chunk_bytes;
}

Result<void> SharedMemoryRing::check_shape(std::uint32_t num_readers, std::uint32_t num_chunks,
                                           std::uint64_t chunk_bytes) {
  if (num_readers < 1 || num_readers > kMaxRingReaders) {
    return invalid_argument("a ring of " + std::to_string(num_readers) + " readers: from 1 to " +
                            std::to_string(kMaxRingReaders) + " are possible");
  }
  if (num_chunks < 2 || num_chunks > kMaxRingChunks || !std::has_single_bit(num_chunks)) {
    return invalid_argument("a ring of " + std::to_string(num_chunks) +
                            " chunks: a power of two from 2 to " + std::to_string(kMaxRingChunks) +
                            " is possible");
  }
  if (chunk_bytes < 64 || chunk_bytes > kMaxRingChunkBytes || chunk_bytes % 64 != 0) {
    return invalid_argument("ring chunks of " + std::to_string(chunk_bytes) +
                            " bytes: a multiple of 64 up to " + std::to_string(kMaxRingChunkBytes) +
                            " is possible");
  }
  return {};
}

void SharedMemoryRing::set_memory(SharedMemory memory) noexcept {
  memory_ = std::move(memory);
  base_ = reinterpret_cast<char*>(memory_.bytes().data());
  mapped_bytes_ = memory_.bytes().size();
}

Result<std::shared_ptr<SharedMemoryRing>> SharedMemoryRing::create(const RingOptions& options) {
  RETURN_IF_ERROR(check_shape(options.num_readers, options.num_chunks, options.chunk_bytes));
  Header::Identity identity{.magic = kMagic,
                            .layout = kLayout,
                            .num_readers = options.num_readers,
                            .num_chunks = options.num_chunks,
                            .unused = 0,
                            .chunk_bytes = options.chunk_bytes,
                            .token = 0,
                            .build_id = {}};
  if (options.build_id.size() >= sizeof identity.build_id) {
    return invalid_argument("a build id of " + std::to_string(options.build_id.size()) +
                            " characters: at most " + std::to_string(sizeof identity.build_id - 1) +
                            " are possible");
  }
  options.build_id.copy(identity.build_id, options.build_id.size());
  identity.token = random_bits();

  std::shared_ptr<SharedMemoryRing> ring(new SharedMemoryRing);
  ring->num_readers_ = options.num_readers;
  ring->num_chunks_ = options.num_chunks;
  ring->chunk_bytes_ = options.chunk_bytes;
  ASSIGN_OR_RETURN(
      SharedMemory memory,
      SharedMemory::create("troupe-ring", segment_bytes(options.num_readers, options.num_chunks,
                                                        options.chunk_bytes)));
  ring->set_memory(std::move(memory));
  // The rest is zero, as required.
  new (ring->base_) Header{.identity = identity, .head = 0, .writer_pid = 0, .writer_waits = 0};
  ring->name_ =
      to_text({.pid = ::getpid(), .fd = ring->memory_.file().get(), .token = identity.token});
  return ring;
}

Result<std::shared_ptr<SharedMemoryRing>> SharedMemoryRing::open(const std::string& name,
                                                                 std::string_view build_id) {
  const std::optional<RingName> parsed = parse_name(name);
  if (!parsed) return invalid_argument("'" + name + "' is not the name of a ring");
  const std::string path =
      "/proc/" + std::to_string(parsed->pid) + "/fd/" + std::to_string(parsed->fd);
  std::shared_ptr<SharedMemoryRing> ring(new SharedMemoryRing);
  ring->name_ = name;
  // The descriptor may refer to any file by now: opening it must have no side effects.
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  const Error gone{ErrorCode::kUnavailable,
                   "there is no ring " + name +
                       ": the process that made it has ended, or is not visible from this one"};
  if (!file.valid()) {
    if (errno == ENOENT || errno == ENXIO) return gone;
    return system_error("opening the ring " + name, errno);
  }
  Header::Identity identity{};
  if (!SharedMemory::segment_bytes(file) ||
      ::pread(file.get(), &identity, sizeof identity, 0) != sizeof identity ||
      identity.magic != kMagic || identity.token != parsed->token) {
    return gone;
  }
  if (identity.layout != kLayout) {
    return Error{ErrorCode::kUnsupported, "the ring " + name + " has layout " +
                                              std::to_string(identity.layout) +
                                              ", this build has layout " + std::to_string(kLayout)};
  }
  const std::string_view theirs(identity.build_id,
                                ::strnlen(identity.build_id, sizeof identity.build_id));
  if (theirs != build_id) {
    return Error{ErrorCode::kUnsupported, "the ring " + name + " was made by build '" +
                                              std::string(theirs) + "', this is build '" +
                                              std::string(build_id) + "'"};
  }
  const auto shape = check_shape(identity.num_readers, identity.num_chunks, identity.chunk_bytes);
  if (!shape.ok())
    return Error{ErrorCode::kCorrupt, "the ring " + name + ": " + shape.error().message};
  ring->num_readers_ = identity.num_readers;
  ring->num_chunks_ = identity.num_chunks;
  ring->chunk_bytes_ = identity.chunk_bytes;
  Result<SharedMemory> memory = SharedMemory::map(
      std::move(file),
      segment_bytes(identity.num_readers, identity.num_chunks, identity.chunk_bytes));
  if (!memory.ok()) {
    return Error{memory.error().code, "the ring " + name + ": " + memory.error().message};
  }
  ring->set_memory(std::move(memory).value());
  return ring;
}

void SharedMemoryRing::close() noexcept {
  // head first: a writer that is woken by its reader's tail must find the ring closed.
  header().head.fetch_or(kClosed);
  futex_wake_all(header().head);
  for (std::uint32_t i = 0; i < num_readers_; ++i) {
    reader(i).tail.fetch_or(kClosed);
    futex_wake_all(reader(i).tail);
  }
}

void SharedMemoryRing::detach_reader(std::uint32_t index) noexcept {
  ReaderCell& cell = reader(index);
  cell.tail.fetch_or(kDetached);
  cell.waits.store(0);
  futex_wake_all(cell.tail);
  futex_wake_all(header().head);
}

bool SharedMemoryRing::is_detached(std::uint32_t index) const noexcept {
  return (reader(index).tail.load() & kDetached) != 0;
}

// ---- Processes --------------------------------------------------------------------------------

bool PeerProcess::alive(std::int32_t pid) {
  if (pid <= 0 || pid == ::getpid()) return true;
  if (pid != pid_) {
    pid_ = pid;
    fd_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!fd_.valid() && errno == ESRCH) return false;
  }
  // Without a pidfd (kernels before 5.3), a zombie counts as alive until it has been waited for.
  if (!fd_.valid()) return ::kill(pid, 0) == 0 || errno != ESRCH;
  pollfd ended{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&ended, 1, 0) <= 0;
}

// ---- The writer -------------------------------------------------------------------------------

Result<std::unique_ptr<RingWriter>> RingWriter::attach(std::shared_ptr<SharedMemoryRing> ring,
                                                       int spins) {
  std::int32_t pid = 0;
  if (!ring->header().writer_pid.compare_exchange_strong(pid, ::getpid())) {
    return invalid_argument("the ring " + ring->name() + " has or had a writer, process " +
                            std::to_string(pid));
  }
  return std::unique_ptr<RingWriter>(new RingWriter(std::move(ring), spins));
}

RingWriter::RingWriter(std::shared_ptr<SharedMemoryRing> ring, int spins)
    : ring_(std::move(ring)), peers_(ring_->num_readers()), spins_(spins) {}

RingWriter::~RingWriter() { ring_->close(); }

void RingWriter::begin(Deadline deadline) {
  deadline_ = deadline;
  first_ = true;
  published_ = 0;
  failure_.reset();
  if (auto taken = take_chunk(); !taken.ok()) failure_ = std::move(taken).error();
}

void RingWriter::append_over_chunks(const char* data, std::size_t size) {
  while (!failure_) {
    const auto piece = std::min(size, static_cast<std::size_t>(end_ - next_));
    std::memcpy(next_, data, piece);
    next_ += piece;
    data += piece;
    size -= piece;
    if (size == 0) return;
    publish(false);
    if (published_ + size > kMaxRingMessageBytes) {
      failure_ = Error{ErrorCode::kTooLarge, "a message of more than " +
                                                 std::to_string(kMaxRingMessageBytes) +
                                                 " bytes is too large for a ring"};
    } else if (auto taken = take_chunk(); !taken.ok()) {
      failure_ = std::move(taken).error();
    }
  }
}

Result<void> RingWriter::commit() {
  if (failure_) return std::exchange(failure_, std::nullopt).value();
  publish(true);
  return {};
}

void RingWriter::publish(bool last) noexcept {
  SharedMemoryRing::ChunkCell& cell = ring_->chunk_cell(position_);
  cell.size = static_cast<std::uint64_t>(next_ - ring_->chunk(position_));
  cell.flags = (first_ ? kFirst : 0) | (last ? kLast : 0);
  published_ += cell.size;
  first_ = false;
  next_ = end_ = nullptr;
  position_ += kChunk;
  Word& head = ring_->header().head;
  head.fetch_add(kChunk);
  for (std::uint32_t i = 0; i < ring_->num_readers(); ++i) {
    if (ring_->reader(i).waits.load() != 0) return futex_wake_all(head);
  }
}

Result<void> RingWriter::take_chunk() {
  const std::uint32_t capacity = ring_->num_chunks_ * kChunk;
  if ((ring_->header().head.load() & kClosed) != 0)
    return Error{ErrorCode::kAborted, "the ring " + ring_->name() + " is closed"};
  if (position_ == free_until_) {
    std::uint32_t num_free = capacity;
    bool any_reader = false;
    for (std::uint32_t i = 0; i < ring_->num_readers();) {
      const std::uint32_t tail = ring_->reader(i).tail.load();
      const std::uint32_t used = position_ - (tail & ~kBits);
      if ((tail & kDetached) == 0) {
        if (used > capacity) {
          return Error{ErrorCode::kCorrupt, "reader " + std::to_string(i) + " of the ring " +
                                                ring_->name() + " has an invalid position"};
        }
        if (used == capacity) {
          RETURN_IF_ERROR(wait_for_reader(i, tail));
          continue;
        }
        any_reader = true;
        num_free = std::min(num_free, capacity - used);
      }
      ++i;
    }
    if (!any_reader) {
      return Error{ErrorCode::kUnavailable, "the ring " + ring_->name() + " has no reader left"};
    }
    free_until_ = position_ + num_free;
  }
  next_ = ring_->chunk(position_);
  end_ = next_ + ring_->chunk_bytes();
  return {};
}

Result<void> RingWriter::wait_for_reader(std::uint32_t index, std::uint32_t tail) {
  SharedMemoryRing::ReaderCell& cell = ring_->reader(index);
  for (int i = 0; i < spins_; ++i) {
    if (cell.tail.load() != tail) return {};
    pause_cpu();
  }
  Word& waits = ring_->header().writer_waits;
  while (cell.tail.load() == tail) {
    if ((tail & kClosed) != 0) {
      return Error{ErrorCode::kAborted, "the ring " + ring_->name() + " is closed"};
    }
    const Deadline now = std::chrono::steady_clock::now();
    if (now >= deadline_) {
      return Error{ErrorCode::kTimeout, "reader " + std::to_string(index) + " of the ring " +
                                            ring_->name() + " has all " +
                                            std::to_string(ring_->num_chunks_) + " chunks unread"};
    }
    const Deadline look = now + kLookInterval;
    waits.store(1);
    if (cell.tail.load() == tail) futex_wait(cell.tail, tail, std::min(deadline_, look));
    waits.store(0);
    if (cell.tail.load() == tail && std::chrono::steady_clock::now() >= look &&
        !peers_[index].alive(cell.pid.load())) {
      log_warning("ring reader ended", kv("ring", ring_->name()), kv("reader", index),
                  kv("pid", cell.pid.load()));
      ring_->detach_reader(index);
    }
  }
  return {};
}

// ---- A reader ---------------------------------------------------------------------------------

Result<std::unique_ptr<RingReader>> RingReader::attach(std::shared_ptr<SharedMemoryRing> ring,
                                                       std::uint32_t index, int spins) {
  if (index >= ring->num_readers()) {
    return invalid_argument("the ring " + ring->name() + " has " +
                            std::to_string(ring->num_readers()) + " readers, no reader " +
                            std::to_string(index));
  }
  std::int32_t pid = 0;
  if (!ring->reader(index).pid.compare_exchange_strong(pid, ::getpid())) {
    return invalid_argument("reader " + std::to_string(index) + " of the ring " + ring->name() +
                            " is or was process " + std::to_string(pid));
  }
  return std::unique_ptr<RingReader>(new RingReader(std::move(ring), index, spins));
}

RingReader::RingReader(std::shared_ptr<SharedMemoryRing> ring, std::uint32_t index, int spins)
    : ring_(std::move(ring)), index_(index), spins_(spins) {}

RingReader::~RingReader() { ring_->detach_reader(index_); }

Result<bool> RingReader::wait_for_chunk(Deadline deadline) {
  Word& head = ring_->header().head;
  SharedMemoryRing::ReaderCell& cell = ring_->reader(index_);
  const auto is_new = [this](std::uint32_t word) { return (word & ~kBits) != position_; };
  std::uint32_t word = head.load();
  for (int i = 0; i < spins_ && word == position_; ++i) {
    pause_cpu();
    word = head.load();
  }
  for (bool writer_ended = false;; word = head.load()) {
    if ((cell.tail.load() & kDetached) != 0) {
      return Error{ErrorCode::kAborted, "reader " + std::to_string(index_) + " of the ring " +
                                            ring_->name() + " is detached"};
    }
    if (is_new(word)) break;
    if ((word & kClosed) != 0)
      return Error{ErrorCode::kAborted, "the ring " + ring_->name() + " is closed"};
    if (writer_ended) {
      return Error{ErrorCode::kUnavailable,
                   "the writer of the ring " + ring_->name() + " has ended"};
    }
    const Deadline now = std::chrono::steady_clock::now();
    if (now >= next_look_) {
      next_look_ = now + kLookInterval;
      // The last message may have been published after head was read.
      writer_ended = !writer_.alive(ring_->header().writer_pid.load());
      if (writer_ended) continue;
    }
    if (now >= deadline) return false;
    cell.waits.store(1);
    if (head.load() == word) futex_wait(head, word, std::min(deadline, next_look_));
    cell.waits.store(0);
  }
  if ((word & ~kBits) - position_ > ring_->num_chunks_ * kChunk) {
    return Error{ErrorCode::kCorrupt,
                 "the writer of the ring " + ring_->name() + " has an invalid position"};
  }
  return true;
}

Result<std::optional<std::span<const char>>> RingReader::next(Deadline deadline) {
  using Message = std::optional<std::span<const char>>;
  for (;;) {
    ASSIGN_OR_RETURN(const bool any, wait_for_chunk(deadline));
    if (!any) return Message{};
    const SharedMemoryRing::ChunkCell& cell = ring_->chunk_cell(position_);
    const std::uint64_t size = cell.size;
    const std::uint32_t flags = cell.flags;
    const bool first = (flags & kFirst) != 0;
    const bool last = (flags & kLast) != 0;
    // A message that its writer abandoned has no end: the next one begins instead.
    if (first) assembled_.clear();
    if (size > ring_->chunk_bytes() || (flags & ~(kFirst | kLast)) != 0 ||
        (!first && !assembling_) || assembled_.size() + size > kMaxRingMessageBytes) {
      return Error{ErrorCode::kCorrupt,
                   "the ring " + ring_->name() + " has a chunk of " + std::to_string(size) +
                       " bytes, flags " + std::to_string(flags) + ", behind " +
                       std::to_string(assembled_.size()) + " bytes of a message"};
    }
    const char* data = ring_->chunk(position_);
    assembling_ = !last;
    if (first && last) {
      holds_chunk_ = true;
      return Message{std::span(data, size)};
    }
    assembled_.insert(assembled_.end(), data, data + size);
    RETURN_IF_ERROR(give_chunk_back());
    if (last) return Message{std::span<const char>(assembled_)};
  }
}

Result<void> RingReader::release() {
  if (!std::exchange(holds_chunk_, false)) return {};
  return give_chunk_back();
}

Result<void> RingReader::give_chunk_back() {
  Word& tail = ring_->reader(index_).tail;
  const std::uint32_t word = tail.fetch_add(kChunk);
  position_ += kChunk;
  if (ring_->header().writer_waits.load() != 0) futex_wake_all(tail);
  if ((word & kDetached) != 0) {
    return Error{ErrorCode::kAborted, "reader " + std::to_string(index_) + " of the ring " +
                                          ring_->name() + " was detached while reading"};
  }
  return {};
}

}  // namespace troupe
