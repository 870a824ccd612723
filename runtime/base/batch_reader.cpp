#include "runtime/base/batch_reader.hpp"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/base/file_descriptor.hpp"

namespace troupe {
namespace {

/// Of a queue: more in flight do not make a disk faster.
constexpr unsigned kQueueDepth = 32;
/// The kernel reads no more in one go.
constexpr std::size_t kMaxReadBytes = std::size_t{1} << 30;

/// From where the read is to its end.
void finish_read(BatchReader::Read& read) {
  while (read.error == 0 && read.num_read < read.to.size()) {
    const ssize_t count =
        ::pread(read.file, read.to.data() + read.num_read, read.to.size() - read.num_read,
                static_cast<off_t>(read.num_read));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) read.error = errno;
    if (count <= 0) return;
    read.num_read += static_cast<std::size_t>(count);
  }
}

class Mapping {
 public:
  Mapping(int file, std::size_t num_bytes, std::uint64_t offset)
      : num_bytes_(num_bytes),
        data_(::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file,
                     static_cast<off_t>(offset))) {}
  ~Mapping() {
    if (valid()) ::munmap(data_, num_bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  [[nodiscard]] bool valid() const noexcept { return data_ != MAP_FAILED; }
  template <class T>
  [[nodiscard]] T* at(std::uint32_t offset) const noexcept {
    return reinterpret_cast<T*>(static_cast<std::byte*>(data_) + offset);
  }

 private:
  std::size_t num_bytes_;
  void* data_;
};

unsigned load_acquire(unsigned* place) noexcept {
  return std::atomic_ref<unsigned>(*place).load(std::memory_order_acquire);
}
void store_release(unsigned* place, unsigned value) noexcept {
  std::atomic_ref<unsigned>(*place).store(value, std::memory_order_release);
}

}  // namespace

class BatchReader::Ring {
 public:
  /// Null: there is none.
  static std::unique_ptr<Ring> open() {
    io_uring_params parameters{};
    FileDescriptor file(static_cast<int>(::syscall(__NR_io_uring_setup, kQueueDepth, &parameters)));
    if (!file.valid()) return nullptr;
    auto ring = std::make_unique<Ring>(std::move(file), parameters);
    return ring->valid() ? std::move(ring) : nullptr;
  }

  Ring(FileDescriptor file, const io_uring_params& parameters)
      : file_(std::move(file)),
        parameters_(parameters),
        submissions_(file_.get(),
                     parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned),
                     IORING_OFF_SQ_RING),
        completions_(file_.get(),
                     parameters.cq_off.cqes + parameters.cq_entries * sizeof(io_uring_cqe),
                     IORING_OFF_CQ_RING),
        entries_(file_.get(), parameters.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES) {}

  [[nodiscard]] bool valid() const noexcept {
    return submissions_.valid() && completions_.valid() && entries_.valid();
  }

  /// One go for each of at most kQueueDepth reads. False: the kernel takes none.
  bool read_once(std::span<Read* const> reads) {
    unsigned* const tail = submissions_.at<unsigned>(parameters_.sq_off.tail);
    const unsigned mask = *submissions_.at<unsigned>(parameters_.sq_off.ring_mask);
    unsigned* const array = submissions_.at<unsigned>(parameters_.sq_off.array);
    for (std::size_t i = 0; i < reads.size(); ++i) {
      const unsigned index = *tail & mask;
      io_uring_sqe& entry = entries_.at<io_uring_sqe>(0)[index];
      std::memset(&entry, 0, sizeof(entry));
      entry.opcode = IORING_OP_READ;
      entry.fd = reads[i]->file;
      entry.addr = reinterpret_cast<std::uint64_t>(reads[i]->to.data());
      entry.len = static_cast<std::uint32_t>(std::min(reads[i]->to.size(), kMaxReadBytes));
      entry.user_data = i;
      array[index] = index;
      store_release(tail, *tail + 1);
    }
    auto num_to_submit = static_cast<unsigned>(reads.size());
    // All are awaited, since their buffers are the kernel's until then.
    for (std::size_t num_done = 0; num_done < reads.size();) {
      const long count = ::syscall(__NR_io_uring_enter, file_.get(), num_to_submit,
                                   static_cast<unsigned>(reads.size() - num_done),
                                   IORING_ENTER_GETEVENTS, nullptr, 0);
      if (count < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY) return false;
      if (count > 0) num_to_submit -= static_cast<unsigned>(count);
      num_done += take_completions(reads);
    }
    return true;
  }

 private:
  std::size_t take_completions(std::span<Read* const> reads) {
    unsigned* const head = completions_.at<unsigned>(parameters_.cq_off.head);
    const unsigned tail = load_acquire(completions_.at<unsigned>(parameters_.cq_off.tail));
    const unsigned mask = *completions_.at<unsigned>(parameters_.cq_off.ring_mask);
    std::size_t count = 0;
    for (; *head != tail; ++count) {
      const io_uring_cqe& entry =
          completions_.at<io_uring_cqe>(parameters_.cq_off.cqes)[*head & mask];
      Read& read = *reads[entry.user_data];
      if (entry.res >= 0)
        read.num_read = static_cast<std::size_t>(entry.res);
      else if (entry.res != -EINTR && entry.res != -EAGAIN && entry.res != -EINVAL)
        read.error = -entry.res;
      store_release(head, *head + 1);
    }
    return count;
  }

  FileDescriptor file_;
  io_uring_params parameters_;
  Mapping submissions_;
  Mapping completions_;
  Mapping entries_;
};

BatchReader::BatchReader() : ring_(Ring::open()) {}
BatchReader::~BatchReader() = default;

void BatchReader::read(std::span<Read> reads) {
  // Of nothing, the kernel would wait until a pipe has something.
  std::vector<Read*> queued;
  for (Read& each : reads)
    if (!each.to.empty()) queued.push_back(&each);
  // A single read gains nothing.
  const std::span<Read* const> all(queued);
  for (std::size_t i = 0; ring_ != nullptr && all.size() > 1 && i < all.size(); i += kQueueDepth)
    if (!ring_->read_once(all.subspan(i, std::min<std::size_t>(kQueueDepth, all.size() - i))))
      ring_.reset();
  for (Read& each : reads) finish_read(each);
}

}  // namespace troupe
