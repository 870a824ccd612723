#pragma once
// A broadcast ring in shared memory: one writer, several readers on the same host.
//
// The segment is a SharedMemory. Its name is "ring:PID:FD:TOKEN"; others open it through
// /proc/PID/fd/FD while its creator lives (same host, same user, same PID namespace). The token
// distinguishes it from another segment with the same PID and FD.
//
//   header | one cell per reader | one cell per chunk | chunks
//
// A message occupies one or more chunks. The writer publishes chunks in order by advancing `head`;
// a reader releases them by advancing its own `tail`; a chunk is reused when every reader has
// released it. head and tails are counters in the upper 30 bits of a futex word, above two flags:
// the ring is closed, and the reader is detached. A chunk is filled from its beginning, so short
// messages touch only `num_chunks` cached pages, however large the chunks are.
//
// Processes may die at any moment: waiting threads check every 100 ms whether their peers are
// alive.

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
#include "runtime/base/shared_memory.hpp"

namespace troupe {

using Deadline = std::chrono::steady_clock::time_point;

struct RingOptions {
  std::uint32_t num_readers = 1;  ///< at most kMaxRingReaders
  std::uint32_t num_chunks = 16;  ///< a power of two, 2 to kMaxRingChunks
  /// A multiple of 64, 64 B to kMaxRingChunkBytes. Longer messages are split into several chunks,
  /// which is faster than one: the reader copies while the writer writes.
  std::uint64_t chunk_bytes = std::uint64_t{1} << 20;
  /// Must be the same for writer and readers, at most 63 characters.
  std::string build_id;
};

inline constexpr std::uint32_t kMaxRingReaders = 256;
inline constexpr std::uint32_t kMaxRingChunks = 1024;
inline constexpr std::uint64_t kMaxRingChunkBytes = std::uint64_t{1} << 30;
/// Readers reject longer messages as corrupt.
inline constexpr std::uint64_t kMaxRingMessageBytes = std::uint64_t{1} << 31;

/// How often to poll before sleeping, when `num_waiting` threads of the group may do so at once:
/// never, unless there is a core for each and two more. On fewer cores, spinning delays the threads
/// that are waited for.
[[nodiscard]] int default_ring_spins(unsigned num_waiting) noexcept;

/// The segment, shared by the writer and the readers of a process. Thread-safe.
class SharedMemoryRing {
 public:
  /// Errors: kInvalidArgument for options out of bounds, kIo.
  [[nodiscard]] static Result<std::shared_ptr<SharedMemoryRing>> create(const RingOptions& options);
  /// Errors: kInvalidArgument (not a name), kUnavailable (its creator has ended), kIo, kCorrupt
  /// (not a ring), kUnsupported (another layout or build).
  [[nodiscard]] static Result<std::shared_ptr<SharedMemoryRing>> open(const std::string& name,
                                                                      std::string_view build_id);
  SharedMemoryRing(const SharedMemoryRing&) = delete;
  SharedMemoryRing& operator=(const SharedMemoryRing&) = delete;

  /// For open(), in this process or another.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::uint32_t num_readers() const noexcept { return num_readers_; }
  [[nodiscard]] std::uint64_t chunk_bytes() const noexcept { return chunk_bytes_; }

  /// No further messages. Readers get what has been published, then the error kAborted; the writer
  /// gets it at once.
  void close() noexcept;
  /// The writer no longer waits for this reader; the reader, if alive, gets the error kAborted.
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
  void set_memory(SharedMemory memory) noexcept;
  [[nodiscard]] Header& header() const noexcept;
  [[nodiscard]] ReaderCell& reader(std::uint32_t index) const noexcept;
  [[nodiscard]] ChunkCell& chunk_cell(std::uint32_t position) const noexcept;
  [[nodiscard]] char* chunk(std::uint32_t position) const noexcept;

  std::string name_;
  SharedMemory memory_;
  char* base_ = nullptr;  ///< of memory_
  std::size_t mapped_bytes_ = 0;
  // Copied when the segment was opened: later values in shared memory are not trusted.
  std::uint32_t num_readers_ = 0;
  std::uint32_t num_chunks_ = 0;
  std::uint64_t chunk_bytes_ = 0;
};

/// Monitors the process at the other end of a ring. A zombie counts as dead.
class PeerProcess {
 public:
  /// `pid` 0: not attached yet, counts as alive.
  [[nodiscard]] bool alive(std::int32_t pid);

 private:
  std::int32_t pid_ = 0;
  FileDescriptor fd_;
};

/// The single writer. Closes the ring on destruction. One thread at a time.
class RingWriter {
 public:
  /// Errors: kInvalidArgument if the ring has a writer.
  [[nodiscard]] static Result<std::unique_ptr<RingWriter>> attach(
      std::shared_ptr<SharedMemoryRing> ring, int spins);
  ~RingWriter();
  RingWriter(const RingWriter&) = delete;
  RingWriter& operator=(const RingWriter&) = delete;

  /// A message is begin(), append() of its bytes piece by piece directly into shared memory, and
  /// commit(). begin() and append() wait for a free chunk until the deadline; errors are reported
  /// by commit(), and no reader gets any part of the message then.
  void begin(Deadline deadline);
  void append(const void* data, std::size_t size) {
    if (size <= static_cast<std::size_t>(end_ - next_)) [[likely]] {
      if (size != 0) std::memcpy(next_, data, size);
      next_ += size;
    } else {
      append_over_chunks(static_cast<const char*>(data), size);
    }
  }
  /// Errors: kTimeout (a reader holds all chunks; the text names it), kAborted (closed),
  /// kUnavailable (no reader is left), kTooLarge. A reader whose process has ended is detached.
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
  std::uint32_t free_until_ = 0;  ///< positions before it need no check of the readers
  char* next_ = nullptr;          ///< null, as end_: no chunk is being written
  char* end_ = nullptr;
  bool first_ = true;            ///< the current chunk begins a message
  std::uint64_t published_ = 0;  ///< bytes of this message in chunks before the current one
  Deadline deadline_;
  std::optional<Error> failure_;  ///< of the current message
};

/// One of the readers; gets every message from the first one on, including those sent before it
/// attached. Detaches on destruction. One thread at a time.
class RingReader {
 public:
  /// Errors: kInvalidArgument if there is no such reader or it has been attached before.
  [[nodiscard]] static Result<std::unique_ptr<RingReader>> attach(
      std::shared_ptr<SharedMemoryRing> ring, std::uint32_t index, int spins);
  ~RingReader();
  RingReader(const RingReader&) = delete;
  RingReader& operator=(const RingReader&) = delete;

  /// Passes the next message to use(std::span<const char>), without copying if it is in one chunk;
  /// returns false if none arrived before the deadline. Errors: kAborted (closed and all read, or
  /// detached), kUnavailable (the writer's process has ended and all is read), kCorrupt. After an
  /// error, data passed to use() is invalid.
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
  /// The message stays in place until release().
  [[nodiscard]] Result<std::optional<std::span<const char>>> next(Deadline deadline);
  [[nodiscard]] Result<void> release();
  /// False if no chunk arrived before the deadline.
  [[nodiscard]] Result<bool> wait_for_chunk(Deadline deadline);
  [[nodiscard]] Result<void> give_chunk_back();

  std::shared_ptr<SharedMemoryRing> ring_;
  PeerProcess writer_;
  std::uint32_t index_;
  int spins_;
  std::uint32_t position_ = 0;  ///< of the next chunk, as in `head`
  Deadline next_look_{};        ///< when to check whether the writer is alive
  bool holds_chunk_ = false;    ///< the message is in the chunk at position_
  bool assembling_ = false;     ///< assembled_ has the beginning of a message
  std::vector<char> assembled_;
};

}  // namespace troupe
