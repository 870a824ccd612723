#pragma once
// Messages from one writer to several readers on the same host, through memory that they share.
//
// The segment is a memfd: it has no name in the file system, so that nothing is left over however
// its users die, and the limits on /dev/shm do not apply. Its name is "ring:PID:FD:TOKEN"; others
// open it through /proc/PID/fd/FD while its creator lives (same host, same user, same PID
// namespace). The token tells it from another one that came to the same PID and FD.
//
//   header | one cell per reader | one cell per chunk | chunks
//
// A message fills one chunk or several. The writer publishes chunks in order by advancing `head`; a
// reader gives them back by advancing its own `tail`; a chunk is written again when every reader
// has given it back. head and tails are counters in the upper 30 bits of a futex word, under two
// bits that say that the ring is closed and that the reader does not count any more. Chunks are
// used in turn from their beginning, so memory is taken as messages are long: small ones stay in
// `num_chunks` cached pages however large a chunk may be.
//
// Any process may end at any moment: whoever waits looks every 100 ms whether those it waits for
// still live.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

using Deadline = std::chrono::steady_clock::time_point;

struct RingOptions {
  std::uint32_t num_readers = 1;  ///< at most kMaxRingReaders
  std::uint32_t num_chunks = 16;  ///< a power of two, 2 to kMaxRingChunks
  /// A multiple of 64, 64 B to kMaxRingChunkBytes. Longer messages travel in several chunks, which
  /// is faster than one at a time: the reader copies while the writer writes.
  std::uint64_t chunk_bytes = std::uint64_t{1} << 20;
  /// What the writer's and the readers' builds must have in common, at most 63 characters.
  std::string build_id;
};

inline constexpr std::uint32_t kMaxRingReaders = 256;
inline constexpr std::uint32_t kMaxRingChunks = 1024;
inline constexpr std::uint64_t kMaxRingChunkBytes = std::uint64_t{1} << 30;
/// A reader refuses longer messages as garbage.
inline constexpr std::uint64_t kMaxRingMessageBytes = std::uint64_t{1} << 31;

/// How often to look before going to sleep, when `num_waiting` threads of the group may do so at
/// once: never, unless there is a core for each and two for others. On fewer, spinning keeps those
/// from running who are waited for.
[[nodiscard]] int default_ring_spins(unsigned num_waiting) noexcept;

/// The segment. Shared by the writer and the readers that a process has; any thread.
class SharedMemoryRing {
 public:
  /// Errors: kInvalidArgument for options out of bounds, kIo.
  [[nodiscard]] static Result<std::shared_ptr<SharedMemoryRing>> create(const RingOptions& options);
  /// Errors: kInvalidArgument (not a name), kUnavailable (its creator is gone), kIo, kCorrupt (not
  /// such a segment), kUnsupported (another layout or build).
  [[nodiscard]] static Result<std::shared_ptr<SharedMemoryRing>> open(const std::string& name,
                                                                      std::string_view build_id);
  ~SharedMemoryRing();
  SharedMemoryRing(const SharedMemoryRing&) = delete;
  SharedMemoryRing& operator=(const SharedMemoryRing&) = delete;

  /// For open(), in this process or another.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::uint32_t num_readers() const noexcept { return num_readers_; }
  [[nodiscard]] std::uint64_t chunk_bytes() const noexcept { return chunk_bytes_; }

  /// No message comes any more. Readers get what has been published, then the error kAborted; the
  /// writer gets it at once.
  void close() noexcept;
  /// The writer waits for this reader no longer; the reader, should it live, gets the error
  /// kAborted.
  void detach_reader(std::uint32_t reader) noexcept;
  [[nodiscard]] bool is_detached(std::uint32_t reader) const noexcept;

 private:
  friend class RingWriter;
  friend class RingReader;
  struct Header;
  struct ReaderCell;
  struct ChunkCell;

  SharedMemoryRing() = default;
  [[nodiscard]] static Result<void> check_shape(std::uint32_t num_readers, std::uint32_t num_chunks,
                                                std::uint64_t chunk_bytes);
  [[nodiscard]] static std::size_t segment_bytes(std::uint32_t num_readers,
                                                 std::uint32_t num_chunks,
                                                 std::uint64_t chunk_bytes) noexcept;
  [[nodiscard]] Result<void> map();
  [[nodiscard]] Header& header() const noexcept;
  [[nodiscard]] ReaderCell& reader(std::uint32_t index) const noexcept;
  [[nodiscard]] ChunkCell& chunk_cell(std::uint32_t position) const noexcept;
  [[nodiscard]] char* chunk(std::uint32_t position) const noexcept;

  std::string name_;
  FileDescriptor fd_;
  char* base_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  // As they were when the segment was opened: what is in it later is not trusted.
  std::uint32_t num_readers_ = 0;
  std::uint32_t num_chunks_ = 0;
  std::uint64_t chunk_bytes_ = 0;
};

/// A process at the other end of a ring: does it live? Sees one that nobody has waited for yet
/// (a zombie) as gone.
class PeerProcess {
 public:
  /// `pid` 0: nobody yet, who counts as alive.
  [[nodiscard]] bool alive(std::int32_t pid);

 private:
  std::int32_t pid_ = 0;
  FileDescriptor fd_;
};

/// The one writer. Closes the ring at its end. One thread at a time.
class RingWriter {
 public:
  /// Errors: kInvalidArgument if the ring has a writer.
  [[nodiscard]] static Result<std::unique_ptr<RingWriter>> attach(
      std::shared_ptr<SharedMemoryRing> ring, int spins);
  ~RingWriter();
  RingWriter(const RingWriter&) = delete;
  RingWriter& operator=(const RingWriter&) = delete;

  /// A message is begin(), append() of its bytes piece by piece straight into shared memory, and
  /// commit(). Where there is no free chunk begin() and append() wait for one until the deadline;
  /// what goes wrong is reported by commit(), and no reader gets any of the message then.
  void begin(Deadline deadline);
  void append(const void* data, std::size_t size) {
    if (size <= static_cast<std::size_t>(end_ - next_)) [[likely]] {
      if (size != 0) std::memcpy(next_, data, size);
      next_ += size;
    } else {
      append_over_chunks(static_cast<const char*>(data), size);
    }
  }
  /// Errors: kTimeout (a reader keeps all chunks; which one is in the text), kAborted (closed),
  /// kUnavailable (no reader is left), kTooLarge. A reader whose process has ended is detached, not
  /// waited for.
  [[nodiscard]] Result<void> commit();

  [[nodiscard]] Result<void> write(std::span<const char> message, Deadline deadline) {
    begin(deadline);
    append(message.data(), message.size());
    return commit();
  }

 private:
  explicit RingWriter(std::shared_ptr<SharedMemoryRing> ring, int spins);
  void append_over_chunks(const char* data, std::size_t size);
  [[nodiscard]] Result<void> take_chunk();
  void publish(bool last) noexcept;
  [[nodiscard]] Result<void> wait_for_reader(std::uint32_t index, std::uint32_t tail);

  std::shared_ptr<SharedMemoryRing> ring_;
  std::vector<PeerProcess> peers_;  ///< by reader
  int spins_;
  std::uint32_t position_ = 0;    ///< of the chunk being written, as in `head`
  std::uint32_t free_until_ = 0;  ///< positions before it need no look at the readers
  char* next_ = nullptr;          ///< null, as end_: no chunk is being written
  char* end_ = nullptr;
  bool first_ = true;            ///< the current chunk begins a message
  std::uint64_t published_ = 0;  ///< bytes of this message in chunks before the current one
  Deadline deadline_;
  std::optional<Error> failure_;  ///< of the current message
};

/// One of the readers; gets every message from the first one on, also those from before it
/// attached. Detaches at its end. One thread at a time.
class RingReader {
 public:
  /// Errors: kInvalidArgument if there is no such reader or it has been attached before.
  [[nodiscard]] static Result<std::unique_ptr<RingReader>> attach(
      std::shared_ptr<SharedMemoryRing> ring, std::uint32_t index, int spins);
  ~RingReader();
  RingReader(const RingReader&) = delete;
  RingReader& operator=(const RingReader&) = delete;

  /// Hands the next message to use(std::span<const char>), in shared memory where it is in one
  /// piece; false if none came until the deadline. Errors: kAborted (closed and all read, or
  /// detached), kUnavailable (the writer's process has ended and all is read), kCorrupt. If there
  /// is an error, what use() took is void.
  template <class Use>
  [[nodiscard]] Result<bool> read(Deadline deadline, Use&& use) {
    auto message = next(deadline);
    if (!message.ok()) return std::move(message).error();
    if (!message.value()) return false;
    use(*message.value());
    if (auto done = release(); !done.ok()) return std::move(done).error();
    return true;
  }

 private:
  RingReader(std::shared_ptr<SharedMemoryRing> ring, std::uint32_t index, int spins);
  /// The message stays where it is until release().
  [[nodiscard]] Result<std::optional<std::span<const char>>> next(Deadline deadline);
  [[nodiscard]] Result<void> release();
  /// False if no chunk came until the deadline.
  [[nodiscard]] Result<bool> wait_for_chunk(Deadline deadline);
  [[nodiscard]] Result<void> give_chunk_back();

  std::shared_ptr<SharedMemoryRing> ring_;
  PeerProcess writer_;
  std::uint32_t index_;
  int spins_;
  std::uint32_t position_ = 0;  ///< of the next chunk, as in `head`
  Deadline next_look_{};        ///< when to see whether the writer lives
  bool holds_chunk_ = false;    ///< the message is in it
  bool assembling_ = false;     ///< the beginning of a message is in assembled_
  std::vector<char> assembled_;
};

}  // namespace troupe
