// The cost of the shared-memory ring between processes, compared with the kernel's best in the
// same run: the time there and back of a small message (a futex word or an eventfd alone, then the
// ring with 1, 2 and 4 readers that all answer, with and without spinning), and the throughput of
// large ones beside memcpy. Rounds of all rows take turns, so that a noisy moment hits all of them;
// a row shows the median and the best of its rounds' medians.
//
// Usage: bench_ring [round trips per round] [rounds]
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "runtime/transport/shared_memory_ring.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kSmall = 1024;  // a decode step of some requests
constexpr std::size_t kLarge = std::size_t{64} << 20;

Deadline patient() { return Clock::now() + 30s; }

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "bench_ring: %s\n", text.c_str());
  std::exit(1);
}
template <class T>
T value_or_fail(Result<T> result) {
  if (!result.ok()) fail(result.error().message);
  return std::move(result).value();
}

pid_t in_child(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  body();
  ::_exit(0);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

/// Microseconds: the median over `count` calls.
double microseconds(int count, const std::function<void()>& round_trip) {
  for (int i = 0; i < count / 10; ++i) round_trip();
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const auto start = Clock::now();
    round_trip();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  return median(std::move(times));
}

double eventfd_round_trip(int count) {
  const int there = ::eventfd(0, 0), back = ::eventfd(0, 0);
  std::uint64_t one = 1;
  const pid_t child = in_child([&] {
    while (::read(there, &one, 8) == 8 && one == 1 && ::write(back, &one, 8) == 8) {
    }
  });
  const double time = microseconds(count, [&] {
    if (::write(there, &one, 8) != 8 || ::read(back, &one, 8) != 8) fail("eventfd");
  });
  one = 2;
  if (::write(there, &one, 8) != 8) fail("eventfd");
  ::waitpid(child, nullptr, 0);
  ::close(there), ::close(back);
  return time;
}

double futex_round_trip(int count) {
  struct Words {
    alignas(64) std::atomic<std::uint32_t> there{0};
    alignas(64) std::atomic<std::uint32_t> back{0};
  };
  auto* words = new (::mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Words;
  const auto wait = [](std::atomic<std::uint32_t>& word, std::uint32_t old) {
    while (word.load() == old) ::syscall(SYS_futex, &word, FUTEX_WAIT, old, nullptr, nullptr, 0);
    return word.load();
  };
  const auto set = [](std::atomic<std::uint32_t>& word, std::uint32_t value) {
    word.store(value);
    ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  };
  const pid_t child = in_child([&] {
    for (std::uint32_t seen = 0; seen != UINT_MAX;)
      set(words->back, seen = wait(words->there, seen));
  });
  std::uint32_t n = 0;
  const double time = microseconds(count, [&] {
    set(words->there, n + 1);
    wait(words->back, n++);
  });
  set(words->there, UINT_MAX);
  ::waitpid(child, nullptr, 0);
  ::munmap(words, sizeof(Words));
  return time;
}

/// Readers in processes of their own; each answers every message in a ring of its own.
class Readers {
 public:
  Readers(std::uint32_t count, const RingOptions& options, int spins, std::size_t answer_bytes)
      : spins_(spins) {
    RingOptions there = options;
    there.num_readers = count;
    ring_ = value_or_fail(SharedMemoryRing::create(there));
    for (std::uint32_t i = 0; i < count; ++i)
      answers_.push_back(value_or_fail(SharedMemoryRing::create({})));
    for (std::uint32_t i = 0; i < count; ++i)
      pids_.push_back(in_child([=, this] { answer(i, answer_bytes); }));
    writer_ = value_or_fail(RingWriter::attach(ring_, spins));
    for (const auto& ring : answers_)
      readers_.push_back(value_or_fail(RingReader::attach(ring, 0, spins)));
  }
  ~Readers() {
    ring_->close();
    for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
  }
  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;

  void round_trip(std::span<const char> message) {
    if (auto written = writer_->write(message, patient()); !written.ok())
      fail(written.error().message);
    for (const auto& reader : readers_) {
      if (!value_or_fail(reader->read(patient(), [](std::span<const char>) {}))) fail("no answer");
    }
  }

 private:
  void answer(std::uint32_t index, std::size_t answer_bytes) {
    const auto ring = value_or_fail(SharedMemoryRing::open(ring_->name(), ""));
    const auto answers = value_or_fail(SharedMemoryRing::open(answers_[index]->name(), ""));
    const auto reader = value_or_fail(RingReader::attach(ring, index, spins_));
    const auto writer = value_or_fail(RingWriter::attach(answers, spins_));
    std::vector<char> copy;
    for (;;) {
      const auto read = reader->read(patient(), [&](std::span<const char> message) {
        copy.assign(message.begin(), message.end());
      });
      if (!read.ok()) return;
      copy.resize(answer_bytes);
      if (!writer->write(copy, patient()).ok()) return;
    }
  }
  int spins_;
  std::shared_ptr<SharedMemoryRing> ring_;
  std::vector<std::shared_ptr<SharedMemoryRing>> answers_;
  std::vector<pid_t> pids_;
  std::unique_ptr<RingWriter> writer_;
  std::vector<std::unique_ptr<RingReader>> readers_;
};

double ring_round_trip(int count, std::uint32_t num_readers, int spins) {
  Readers readers(num_readers, {}, spins, kSmall);
  const std::vector<char> message(kSmall, 'x');
  return microseconds(count, [&] { readers.round_trip(message); });
}

/// GiB/s, the reader's own copy included.
double ring_throughput(std::uint64_t chunk_bytes, std::uint32_t num_chunks) {
  Readers readers(1, {.num_chunks = num_chunks, .chunk_bytes = chunk_bytes}, 0, 8);
  const std::vector<char> message(kLarge, 'x');
  return double{kLarge} / (1 << 30) / (microseconds(5, [&] { readers.round_trip(message); }) / 1e6);
}

double memcpy_throughput() {
  const std::vector<char> source(kLarge, 'x');
  std::vector<char> target(kLarge);
  return double{kLarge} / (1 << 30) /
         (microseconds(5, [&] { std::memcpy(target.data(), source.data(), kLarge); }) / 1e6);
}

struct Row {
  std::string name;
  bool more_is_better;
  std::function<double()> measure;
  std::vector<double> rounds;
};

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 5000;
  const int num_rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  if (count < 10 || num_rounds < 1) fail("usage: bench_ring [round trips per round] [rounds]");
  constexpr int kSpins = 1000;
  std::vector<Row> rows;
  rows.push_back(
      {"us there and back: eventfd", false, [&] { return eventfd_round_trip(count); }, {}});
  rows.push_back({"us there and back: futex", false, [&] { return futex_round_trip(count); }, {}});
  for (const std::uint32_t num_readers : {1u, 2u, 4u}) {
    for (const int spins : {0, kSpins}) {
      rows.push_back({"us there and back: ring, " + std::to_string(num_readers) +
                          (num_readers == 1 ? " reader, " : " readers, ") +
                          (spins == 0 ? "no spinning" : "spinning"),
                      false,
                      [=] { return ring_round_trip(count, num_readers, spins); },
                      {}});
    }
  }
  rows.push_back({"GiB/s: memcpy", true, memcpy_throughput, {}});
  for (const auto& [chunk_bytes, num_chunks] : {std::pair{std::uint64_t{1} << 18, 8u},
                                                {std::uint64_t{1} << 20, 8u},
                                                {std::uint64_t{16} << 20, 8u},
                                                {std::uint64_t{64} << 20, 2u}}) {
    rows.push_back({"GiB/s: ring, chunks of " + std::to_string(chunk_bytes >> 10) + " KiB",
                    true,
                    [=] { return ring_throughput(chunk_bytes, num_chunks); },
                    {}});
  }
  for (int round = 0; round < num_rounds; ++round)
    for (Row& row : rows) row.rounds.push_back(row.measure());
  std::printf("%-52s %10s %10s\n", "", "median", "best");
  for (const Row& row : rows) {
    const auto [least, most] = std::minmax_element(row.rounds.begin(), row.rounds.end());
    std::printf("%-52s %10.2f %10.2f\n", row.name.c_str(), median(row.rounds),
                row.more_is_better ? *most : *least);
  }
  return 0;
}
