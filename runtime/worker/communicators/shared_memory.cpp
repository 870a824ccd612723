#include "runtime/worker/communicators/shared_memory.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/base/clock.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/futex.hpp"
#include "runtime/base/poll.hpp"
#include "runtime/base/shared_memory.hpp"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::uint32_t kMagic = 0x54726f75;  // "Trou"
constexpr std::uint32_t kLayoutVersion = 1;
constexpr std::int32_t kMaxRanks = 16;
constexpr std::size_t kMaxNameBytes = sizeof(sockaddr_un::sun_path) - 1;
/// What a rank gives to one round of a collective; each rank has two of them, see Exchange.
constexpr std::size_t kSlotBytes = 256 << 10;
/// Bytes under way from one rank to another.
constexpr std::size_t kChannelBytes = 8 << 20;
/// How long a waiting rank sleeps before it looks whether its peers still live.
constexpr auto kSlice = 20ms;
constexpr auto kSpinTime = 50us;
constexpr auto kConnectInterval = 2ms;
/// For what a process that has connected is to say at once.
constexpr auto kHelloDeadline = 2s;
/// Instead of its process: the rank has done its part and will do no more.
constexpr pid_t kLeft = -1;

/// A number that one rank counts up and others wait for.
struct alignas(64) Counter {
  std::atomic<std::uint32_t> value{0};
  std::atomic<std::uint32_t> num_waiting{0};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// A stream of bytes from one rank to another; positions wrap around.
struct Channel {
  Counter num_written;
  Counter num_read;
};

/// Lies at the beginning of the memory; slots and channels' bytes follow. Zero is its initial
/// state.
struct Header {
  std::uint32_t magic;
  std::uint32_t layout_version;
  ino_t pid_namespace;  ///< of rank 0: where `pids` mean something
  std::array<std::atomic<std::int32_t>, kMaxRanks> pids;  ///< 0: not there yet, or not to be seen
  std::array<Counter, kMaxRanks> arrivals;                ///< rounds that each rank has come to
  std::array<Channel, std::size_t{kMaxRanks} * kMaxRanks> channels;  ///< from * kMaxRanks + to
  std::atomic<std::uint32_t> failed;  ///< 1: being written, 2: `reason` can be read
  std::array<char, 512> reason;
};

std::size_t round_up(std::size_t size) { return (size + 4095) / 4096 * 4096; }

std::size_t slots_offset() { return round_up(sizeof(Header)); }
std::size_t channels_offset(std::int32_t size) {
  return slots_offset() + static_cast<std::size_t>(size) * 2 * kSlotBytes;
}
std::size_t segment_bytes(std::int32_t size) {
  return channels_offset(size) + static_cast<std::size_t>(size * size) * kChannelBytes;
}

void set_counter(Counter& counter, std::uint32_t value) {
  counter.value.store(value, std::memory_order_seq_cst);
  if (counter.num_waiting.load(std::memory_order_seq_cst) > 0) futex_wake_all(counter.value);
}

/// Ranks in containers may share memory and yet not see each other's processes.
ino_t pid_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

Error io_error(const char* action) {
  return {ErrorCode::kIo, std::string("cannot ") + action + ": " + std::strerror(errno)};
}

/// The shared memory with its parts.
class Segment {
 public:
  explicit Segment(SharedMemory memory)
      : memory_(std::move(memory)), address_(memory_.bytes().data()) {}

  static Result<std::unique_ptr<Segment>> create(std::int32_t num_ranks) {
    ASSIGN_OR_RETURN(SharedMemory memory,
                     SharedMemory::create("troupe communicator", segment_bytes(num_ranks)));
    auto segment = std::make_unique<Segment>(std::move(memory));
    segment->header().magic = kMagic;
    segment->header().layout_version = kLayoutVersion;
    segment->header().pid_namespace = pid_namespace();
    return segment;
  }
  static Result<std::unique_ptr<Segment>> map(FileDescriptor file, std::int32_t num_ranks) {
    ASSIGN_OR_RETURN(SharedMemory memory,
                     SharedMemory::map(std::move(file), segment_bytes(num_ranks)));
    return std::make_unique<Segment>(std::move(memory));
  }

  [[nodiscard]] const FileDescriptor& file() const { return memory_.file(); }
  [[nodiscard]] Header& header() const { return *reinterpret_cast<Header*>(address_); }
  [[nodiscard]] std::byte* slot(std::int32_t rank, std::uint32_t round) const {
    return address_ + slots_offset() +
           (static_cast<std::size_t>(rank) * 2 + round % 2) * kSlotBytes;
  }
  [[nodiscard]] std::byte* channel(std::int32_t num_ranks, std::int32_t from,
                                   std::int32_t to) const {
    return address_ + channels_offset(num_ranks) +
           static_cast<std::size_t>(from * num_ranks + to) * kChannelBytes;
  }

 private:
  SharedMemory memory_;
  std::byte* address_;
};

/// What a rank says when it comes, and what rank 0 answers; the memory travels beside the answer.
struct Hello {
  std::uint32_t magic = kMagic;
  std::uint32_t layout_version = kLayoutVersion;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::uint32_t generation = 0;
};

Hello hello_of(const CommunicatorOptions& options) {
  return {.rank = options.rank, .size = options.size, .generation = options.generation};
}

Error newer_meeting(const CommunicatorOptions& options) {
  return {ErrorCode::kUnavailable, "the other ranks of " + options.rendezvous + " meet anew"};
}

std::pair<sockaddr_un, socklen_t> socket_address(const CommunicatorOptions& options) {
  const std::string& name = options.rendezvous;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A leading zero byte: the abstract namespace.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

/// -1: no file comes with it.
bool send_hello(const FileDescriptor& socket, Hello hello, int file) {
  iovec data{&hello, sizeof hello};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (file >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &file, sizeof file);
  }
  return sendmsg(socket.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof hello);
}

/// Until the deadline; `file` may be null.
bool receive_hello(const FileDescriptor& socket, Clock::time_point deadline, Hello& hello,
                   FileDescriptor* file) {
  if (!wait_ready(socket.get(), POLLIN, deadline)) return false;
  iovec data{&hello, sizeof hello};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof hello))
    return false;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    FileDescriptor received(descriptor);
    if (file != nullptr) *file = std::move(received);
  }
  return true;
}

std::string missing(std::span<const FileDescriptor> peers) {
  std::string names;
  for (std::size_t rank = 1; rank < peers.size(); ++rank)
    if (!peers[rank].valid()) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  return names;
}

bool same_user(const FileDescriptor& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == geteuid();
}

Error does_not_fit(const Hello& hello, const CommunicatorOptions& options) {
  if (hello.magic != kMagic || hello.layout_version != kLayoutVersion)
    return {ErrorCode::kUnsupported,
            "a peer at " + options.rendezvous + " is of another build: layout " +
                std::to_string(hello.layout_version) + ", here " + std::to_string(kLayoutVersion)};
  return {ErrorCode::kUnavailable, "a peer at " + options.rendezvous + " is rank " +
                                       std::to_string(hello.rank) + " of " +
                                       std::to_string(hello.size) + ", expected are " +
                                       std::to_string(options.size) + " ranks"};
}

struct Meeting {
  std::unique_ptr<Segment> segment;
  std::vector<FileDescriptor>
      peers;  ///< sockets by rank; none for ranks without a direct connection
};

/// Another worker may still wait there in a rendezvous of an earlier engine: that ends when ranks
/// of a newer generation connect.
Result<FileDescriptor> listen_at(const CommunicatorOptions& options, Clock::time_point deadline) {
  const auto [address, address_size] = socket_address(options);
  while (true) {
    FileDescriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const bool is_bound =
        listener.valid() &&
        bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), address_size) == 0;
    if (is_bound && listen(listener.get(), options.size) == 0) return listener;
    if (errno != EADDRINUSE || Clock::now() >= deadline)
      return io_error(("listen at " + options.rendezvous).c_str());
    std::this_thread::sleep_for(kConnectInterval);
  }
}

/// Rank 0: makes the memory, and gives it to every other rank.
Result<Meeting> host_meeting(const CommunicatorOptions& options, Clock::time_point deadline) {
  Meeting meeting;
  ASSIGN_OR_RETURN(meeting.segment, Segment::create(options.size));
  meeting.peers.resize(static_cast<std::size_t>(options.size));
  ASSIGN_OR_RETURN(const FileDescriptor listener, listen_at(options, deadline));
  for (std::int32_t num_peers = 1; num_peers < options.size;) {
    if (!wait_ready(listener.get(), POLLIN, deadline))
      return Error{ErrorCode::kTimeout, "rank " + missing(meeting.peers) + " did not connect to " +
                                            options.rendezvous + " within " +
                                            std::to_string(options.timeout_s) + " s"};
    FileDescriptor peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Hello hello;
    if (!peer.valid() || !same_user(peer) ||
        !receive_hello(peer, std::min(deadline, Clock::now() + kHelloDeadline), hello, nullptr))
      continue;
    const Hello answer = hello_of(options);
    if (hello.magic == kMagic && hello.layout_version == kLayoutVersion) {
      if (hello.generation > options.generation) return newer_meeting(options);
      if (hello.generation < options.generation) {
        static_cast<void>(send_hello(peer, answer, -1));
        continue;
      }
    }
    const bool fits = hello.magic == kMagic && hello.layout_version == kLayoutVersion &&
                      hello.size == options.size && hello.rank > 0 && hello.rank < options.size &&
                      !meeting.peers[static_cast<std::size_t>(hello.rank)].valid();
    if (!fits) {
      static_cast<void>(send_hello(peer, answer, -1));  // so that it can identify this rank
      return does_not_fit(hello, options);
    }
    if (!send_hello(peer, answer, meeting.segment->file().get())) continue;
    meeting.peers[static_cast<std::size_t>(hello.rank)] = std::move(peer);
    ++num_peers;
  }
  return meeting;
}

Result<Meeting> come_to_meeting(const CommunicatorOptions& options, Clock::time_point deadline) {
  const auto [address, address_size] = socket_address(options);
  while (true) {
    FileDescriptor host(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!host.valid()) return io_error("open a socket");
    if (connect(host.get(), reinterpret_cast<const sockaddr*>(&address), address_size) == 0 &&
        same_user(host) && send_hello(host, hello_of(options), -1)) {
      Hello answer;
      FileDescriptor memory;
      if (receive_hello(host, deadline, answer, &memory)) {
        if (answer.magic == kMagic && answer.layout_version == kLayoutVersion &&
            answer.generation > options.generation)
          return newer_meeting(options);
        if (!memory.valid() || answer.layout_version != kLayoutVersion)
          return does_not_fit(answer, options);
        Meeting meeting;
        ASSIGN_OR_RETURN(meeting.segment, Segment::map(std::move(memory), options.size));
        meeting.peers.resize(static_cast<std::size_t>(options.size));
        meeting.peers[0] = std::move(host);
        return meeting;
      }
    }
    if (Clock::now() >= deadline)
      return Error{ErrorCode::kTimeout, "rank 0 did not open " + options.rendezvous + " within " +
                                            std::to_string(options.timeout_s) + " s"};
    std::this_thread::sleep_for(kConnectInterval);
  }
}

/// Collectives go in rounds. In a round each rank writes its slot, counts up its arrival, waits for
/// the others' arrivals and reads their slots. With two alternating slots one wait is enough: a
/// rank in round n + 2 has seen all others arrive in n + 1, so none still reads the slots of n.
class SharedMemoryCommunicator final : public Communicator {
 public:
  SharedMemoryCommunicator(const CommunicatorOptions& options, Meeting meeting)
      : Communicator(options.rank, options.size, options.group_size),
        options_(options),
        segment_(std::move(meeting.segment)),
        header_(segment_->header()),
        peers_(std::move(meeting.peers)),
        sees_processes_(header_.pid_namespace == pid_namespace()) {
    if (sees_processes_) header_.pids[index(rank())].store(getpid());
  }
  ~SharedMemoryCommunicator() override { header_.pids[index(rank())].store(kLeft); }

  void all_reduce(std::span<float> data) override {
    CHECK(group_size() == 1 || group_size() == 2 || group_size() == 4, group_size());
    if (group_size() == 1) return;
    constexpr std::size_t kSlotFloats = kSlotBytes / sizeof(float);
    for (std::size_t begin = 0; begin < data.size(); begin += kSlotFloats) {
      const std::span<float> part = data.subspan(begin, std::min(kSlotFloats, data.size() - begin));
      if (!exchange(std::as_bytes(part), group_begin(), group_size())) return;
      const auto slot = [this](std::int32_t member) {
        return reinterpret_cast<const float*>(segment_->slot(group_begin() + member, round_));
      };
      const float* a = slot(0);
      const float* b = slot(1);
      if (group_size() == 2) {
        for (std::size_t i = 0; i < part.size(); ++i) part[i] = a[i] + b[i];
        continue;
      }
      const float* c = slot(2);
      const float* d = slot(3);
      for (std::size_t i = 0; i < part.size(); ++i) part[i] = (a[i] + b[i]) + (c[i] + d[i]);
    }
  }

  void all_gather(std::span<const std::byte> data, std::span<std::byte> all) override {
    CHECK(all.size() == index(group_size()) * data.size(), all.size(), data.size());
    for (std::size_t begin = 0; begin < data.size(); begin += kSlotBytes) {
      const std::size_t num_bytes = std::min(kSlotBytes, data.size() - begin);
      if (!exchange(data.subspan(begin, num_bytes), group_begin(), group_size())) return;
      for (std::int32_t member = 0; member < group_size(); ++member)
        std::memcpy(all.data() + index(member) * data.size() + begin,
                    segment_->slot(group_begin() + member, round_), num_bytes);
    }
  }

  void send(std::span<const std::byte> data, std::int32_t to) override {
    Channel& channel = header_.channels[index(rank() * kMaxRanks + to)];
    std::byte* bytes = segment_->channel(size(), rank(), to);
    std::uint32_t written = channel.num_written.value.load(std::memory_order_relaxed);
    while (!data.empty()) {
      std::size_t num_free = 0;
      const bool there = wait(channel.num_read, to, [&](std::uint32_t num_read) {
        return (num_free = kChannelBytes - (written - num_read)) > 0;
      });
      if (!there) return;
      const std::size_t num_bytes = std::min(data.size(), num_free);
      copy_wrapped(written, num_bytes,
                   [&](std::size_t position, std::size_t at, std::size_t count) {
                     std::memcpy(bytes + position, data.data() + at, count);
                   });
      data = data.subspan(num_bytes);
      written += static_cast<std::uint32_t>(num_bytes);
      set_counter(channel.num_written, written);
    }
  }

  bool recv(std::span<std::byte> data, std::int32_t from) override {
    Channel& channel = header_.channels[index(from * kMaxRanks + rank())];
    const std::byte* bytes = segment_->channel(size(), from, rank());
    std::uint32_t read = channel.num_read.value.load(std::memory_order_relaxed);
    while (!data.empty()) {
      std::size_t num_there = 0;
      const bool there = wait(channel.num_written, from, [&](std::uint32_t num_written) {
        return (num_there = num_written - read) > 0;
      });
      if (!there) return false;
      const std::size_t num_bytes = std::min(data.size(), num_there);
      copy_wrapped(read, num_bytes, [&](std::size_t position, std::size_t at, std::size_t count) {
        std::memcpy(data.data() + at, bytes + position, count);
      });
      data = data.subspan(num_bytes);
      read += static_cast<std::uint32_t>(num_bytes);
      set_counter(channel.num_read, read);
    }
    return true;
  }

  void barrier() override { static_cast<void>(exchange({}, group_begin(), group_size())); }
  /// Before anything else: a barrier for all ranks. False if some rank never came.
  bool meet() { return exchange({}, 0, size()); }

  void abort(const Error& reason) override {
    std::uint32_t fine = 0;
    if (!header_.failed.compare_exchange_strong(fine, 1)) return;
    std::array<char, 512>& text = header_.reason;
    const std::size_t size = std::min(reason.message.size(), text.size() - 1);
    std::memcpy(text.data(), reason.message.data(), size);
    header_.failed.store(2);
    for (Counter& arrival : header_.arrivals) futex_wake_all(arrival.value);
    for (std::int32_t from = 0; from < this->size(); ++from) {
      for (std::int32_t to = 0; to < this->size(); ++to) {
        Channel& channel = header_.channels[index(from * kMaxRanks + to)];
        futex_wake_all(channel.num_written.value);
        futex_wake_all(channel.num_read.value);
      }
    }
  }

  [[nodiscard]] Result<void> status() const override {
    const std::uint32_t failed = header_.failed.load();
    if (failed == 0) return {};
    if (failed == 1) return Error{ErrorCode::kUnavailable, "the group of workers failed"};
    return Error{ErrorCode::kUnavailable, std::string(header_.reason.data())};
  }

 private:
  static std::size_t index(std::int32_t number) { return static_cast<std::size_t>(number); }

  /// The data of each of these ranks is in its slot of round_. False: the communicator has failed.
  bool exchange(std::span<const std::byte> data, std::int32_t first_rank, std::int32_t num_ranks) {
    const std::uint32_t round = round_ + 1;
    std::copy(data.begin(), data.end(), segment_->slot(rank(), round));
    set_counter(header_.arrivals[index(rank())], round);
    for (std::int32_t peer = first_rank; peer < first_rank + num_ranks; ++peer) {
      const bool there = wait(header_.arrivals[index(peer)], peer, [&](std::uint32_t arrived) {
        return static_cast<std::int32_t>(arrived - round) >= 0;
      });
      if (!there) return false;
    }
    round_ = round;
    return true;
  }

  /// Waits until done(value of the counter); false: the communicator has failed, also by this.
  template <class Done>
  bool wait(Counter& counter, std::int32_t peer, const Done& done) {
    if (done(counter.value.load(std::memory_order_acquire))) return true;
    const Clock::time_point start = Clock::now();
    if (options_.spin) {
      while (Clock::now() - start < kSpinTime)
        for (int i = 0; i < 32; ++i)
          if (done(counter.value.load(std::memory_order_acquire))) return true;
    }
    const auto deadline = start + std::chrono::duration<double>(options_.timeout_s);
    auto next_look = start + kSlice;
    while (true) {
      counter.num_waiting.fetch_add(1, std::memory_order_seq_cst);
      const std::uint32_t seen = counter.value.load(std::memory_order_seq_cst);
      const bool is_done = done(seen);
      if (!is_done && header_.failed.load() == 0)
        futex_wait(counter.value, seen, Clock::now() + kSlice);
      counter.num_waiting.fetch_sub(1, std::memory_order_seq_cst);
      if (is_done || done(counter.value.load(std::memory_order_acquire))) return true;
      if (header_.failed.load() != 0) return false;
      const Clock::time_point now = Clock::now();
      if (now < next_look) continue;
      next_look = now + kSlice;
      if (const std::int32_t gone = find_gone(peer); gone >= 0) {
        // Its last words may have come in between.
        if (done(counter.value.load(std::memory_order_acquire))) return true;
        abort({ErrorCode::kUnavailable, "rank " + std::to_string(gone) + " is gone"});
        return false;
      }
      if (now >= deadline) {
        abort({ErrorCode::kTimeout, "rank " + std::to_string(rank()) + " waited " +
                                        std::to_string(options_.timeout_s) + " s for rank " +
                                        std::to_string(peer)});
        return false;
      }
    }
  }

  /// A rank whose process has ended, or that has left though we wait for it; -1: there is none. A
  /// process that has ended and was not waited for still has its number, but its sockets are
  /// closed.
  [[nodiscard]] std::int32_t find_gone(std::int32_t waited_for) const {
    for (std::int32_t peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      const pid_t pid = header_.pids[index(peer)].load();
      if (pid == kLeft && peer == waited_for) return peer;
      if (pid == kLeft) continue;
      if (sees_processes_ && pid != 0 && kill(pid, 0) != 0 && errno == ESRCH) return peer;
      const FileDescriptor& socket = peers_[index(peer)];
      pollfd ready{.fd = socket.get(), .events = 0, .revents = 0};
      if (socket.valid() && poll(&ready, 1, 0) > 0 && (ready.revents & (POLLHUP | POLLERR)) != 0)
        return peer;
    }
    return -1;
  }

  /// Calls copy(position in the channel, position in the data, number of bytes) once or twice.
  template <class Copy>
  static void copy_wrapped(std::uint32_t begin, std::size_t num_bytes, const Copy& copy) {
    const std::size_t position = begin % kChannelBytes;
    const std::size_t first = std::min(num_bytes, kChannelBytes - position);
    copy(position, std::size_t{0}, first);
    if (first < num_bytes) copy(std::size_t{0}, first, num_bytes - first);
  }

  CommunicatorOptions options_;
  std::unique_ptr<Segment> segment_;
  Header& header_;
  std::vector<FileDescriptor> peers_;
  bool sees_processes_;
  std::uint32_t round_ = 0;
};

}  // namespace

Result<std::unique_ptr<Communicator>> create_shared_memory_communicator(
    const CommunicatorOptions& options) {
  if (options.size > kMaxRanks)
    return invalid_argument(std::to_string(options.size) + " ranks on one host, at most " +
                            std::to_string(kMaxRanks) + " can share memory");
  if (options.rendezvous.size() > kMaxNameBytes)
    return invalid_argument("rendezvous has " + std::to_string(options.rendezvous.size()) +
                                " characters, at most " + std::to_string(kMaxNameBytes),
                            "rendezvous");
  const auto deadline = Clock::now() + from_seconds(options.timeout_s);
  ASSIGN_OR_RETURN(Meeting meeting, options.rank == 0 ? host_meeting(options, deadline)
                                                      : come_to_meeting(options, deadline));
  auto communicator = std::make_unique<SharedMemoryCommunicator>(options, std::move(meeting));
  if (!communicator->meet()) return communicator->status().error();
  return std::unique_ptr<Communicator>(std::move(communicator));
}

}  // namespace troupe
