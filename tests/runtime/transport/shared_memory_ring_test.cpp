#include "runtime/transport/shared_memory_ring.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <functional>
#include <future>
#include <latch>
#include <random>
#include <set>
#include <thread>

namespace troupe {
namespace {

using namespace std::chrono_literals;

Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }
/// Long enough for any machine; what runs into it has failed.
Deadline patient() { return in(60s); }

std::shared_ptr<SharedMemoryRing> make_ring(RingOptions options = {}) {
  if (options.build_id.empty()) options.build_id = "test";
  auto ring = SharedMemoryRing::create(options);
  BOOST_REQUIRE_MESSAGE(ring.ok(), (ring.ok() ? "" : ring.error().message));
  return *ring;
}

std::unique_ptr<RingWriter> writer_of(const std::shared_ptr<SharedMemoryRing>& ring) {
  return RingWriter::attach(ring, 0).value();
}
std::unique_ptr<RingReader> reader_of(const std::shared_ptr<SharedMemoryRing>& ring,
                                      std::uint32_t index = 0, int spins = 0) {
  return RingReader::attach(ring, index, spins).value();
}

/// Message number n: its length and its bytes follow from n.
std::string message(std::uint64_t n, std::size_t max_size) {
  std::mt19937_64 random(n);
  std::string text(random() % (max_size + 1), '\0');
  for (char& c : text) c = static_cast<char>(random());
  return std::to_string(n) + ":" + text;
}

/// The next message, "(none)" or the error. Any thread, unlike what has Boost's checks.
std::string read_text(RingReader& reader, Deadline deadline = patient()) {
  std::string text = "(none)";
  auto read = reader.read(
      deadline, [&](std::span<const char> bytes) { text.assign(bytes.begin(), bytes.end()); });
  return read.ok() ? text : read.error().message;
}
Error read_error(RingReader& reader, Deadline deadline = patient()) {
  auto read = reader.read(deadline, [](std::span<const char>) {});
  return read.ok() ? Error{ErrorCode::kOk, "no error"} : read.error();
}
/// Empty, or what went wrong. Any thread.
Error write_error(RingWriter& writer, std::string_view text, Deadline deadline = patient()) {
  auto written = writer.write({text.data(), text.size()}, deadline);
  return written.ok() ? Error{ErrorCode::kOk} : written.error();
}
void write_text(RingWriter& writer, std::string_view text) {
  const Error error = write_error(writer, text);
  BOOST_REQUIRE_MESSAGE(error.code == ErrorCode::kOk, error.message);
}
template <class Function>
auto in_thread(Function function) {
  return std::async(std::launch::async, std::move(function));
}

bool mentions(const Error& error, std::string_view text) {
  return error.message.find(text) != std::string::npos;
}

/// Runs `body` in a forked process; its status is what body returns, 99 after an exception.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(::fork()) {
    BOOST_REQUIRE(pid_ >= 0);
    if (pid_ != 0) return;
    int status = 99;
    try {
      status = body();
    } catch (...) {
    }
    ::_exit(status);
  }
  ~Child() {
    if (pid_ > 0) kill(), wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void kill() const { ::kill(pid_, SIGKILL); }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
};

/// Part of a child: no Boost.Test there.
int read_all_numbered(const std::string& name, std::uint32_t index, std::uint64_t count,
                      std::size_t max_size) {
  auto ring = SharedMemoryRing::open(name, "test");
  if (!ring.ok()) return 1;
  auto reader = RingReader::attach(*ring, index, 0);
  if (!reader.ok()) return 2;
  for (std::uint64_t n = 0; n < count; ++n) {
    bool right = false;
    const std::string expected = message(n, max_size);
    auto read = (*reader)->read(patient(), [&](std::span<const char> bytes) {
      right = std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end());
    });
    if (!read.ok() || !*read || !right) return 3;
  }
  return 0;
}

std::set<std::string> files_in_shared_memory() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    names.insert(entry.path().filename());
  return names;
}

BOOST_AUTO_TEST_CASE(messages_arrive_in_order_round_after_round) {
  const auto ring = make_ring({.num_chunks = 4, .chunk_bytes = 256});
  const auto writer = writer_of(ring);
  const auto reader = reader_of(ring);
  for (std::uint64_t n = 0; n < 100; ++n) {
    const std::string text = message(n, 200);
    write_text(*writer, text);
    BOOST_TEST(read_text(*reader) == text);
  }
  BOOST_TEST(read_text(*reader, in(0ms)) == "(none)");
}

BOOST_AUTO_TEST_CASE(an_empty_message_is_a_message) {
  const auto ring = make_ring();
  const auto writer = writer_of(ring);
  const auto reader = reader_of(ring);
  write_text(*writer, "");
  write_text(*writer, "more");
  BOOST_TEST(read_text(*reader) == "");
  BOOST_TEST(read_text(*reader) == "more");
}

BOOST_AUTO_TEST_CASE(a_message_that_fills_a_chunk_to_the_last_byte_takes_one) {
  const auto ring = make_ring({.num_chunks = 2, .chunk_bytes = 64});
  const auto writer = writer_of(ring);
  const auto reader = reader_of(ring);
  const std::string full(64, 'x');
  write_text(*writer, full);
  write_text(*writer, full);
  BOOST_TEST((write_error(*writer, "y", in(0ms)).code == ErrorCode::kTimeout));
  BOOST_TEST(read_text(*reader) == full);
  BOOST_TEST(read_text(*reader) == full);
}

BOOST_AUTO_TEST_CASE(a_message_longer_than_a_chunk_travels_in_several) {
  const auto ring = make_ring({.num_chunks = 16, .chunk_bytes = 64});
  const auto writer = writer_of(ring);
  const auto reader = reader_of(ring);
  for (const std::size_t size : {65, 128, 129, 511, 512}) {
    const std::string text(size, static_cast<char>('a' + size % 26));
    write_text(*writer, text);
    write_text(*writer, "");
    BOOST_TEST(read_text(*reader) == text);
    BOOST_TEST(read_text(*reader) == "");
  }
}

BOOST_AUTO_TEST_CASE(a_message_longer_than_the_whole_ring_arrives_while_it_is_written) {
  const auto ring = make_ring({.num_readers = 2, .num_chunks = 2, .chunk_bytes = 64});
  const std::string text = message(1, 0) + std::string(10'000, 'z');
  const auto first = reader_of(ring, 0), second = reader_of(ring, 1);
  auto other = in_thread([&] { return read_text(*second); });
  auto writing = in_thread([&, writer = writer_of(ring)] { return write_error(*writer, text); });
  BOOST_TEST(read_text(*first) == text);
  BOOST_TEST(other.get() == text);
  BOOST_TEST((writing.get().code == ErrorCode::kOk));
}

BOOST_AUTO_TEST_CASE(a_message_written_in_pieces_is_one) {
  const auto ring = make_ring({.num_chunks = 4, .chunk_bytes = 64});
  const auto writer = writer_of(ring);
  const auto reader = reader_of(ring);
  std::string expected;
  writer->begin(patient());
  for (int i = 0; i < 30; ++i) {
    const std::string piece(static_cast<std::size_t>(i % 13), static_cast<char>('a' + i % 26));
    writer->append(piece.data(), piece.size());
    expected += piece;
  }
  BOOST_REQUIRE(writer->commit().ok());
  BOOST_TEST(read_text(*reader) == expected);
}

BOOST_AUTO_TEST_CASE(every_reader_gets_every_message_at_its_own_pace) {
  constexpr std::uint64_t kCount = 3000;
  for (const std::uint32_t num_readers : {1u, 2u, 4u}) {
    const auto ring = make_ring({.num_readers = num_readers, .num_chunks = 4, .chunk_bytes = 128});
    std::vector<std::future<std::uint64_t>> num_wrong;
    for (std::uint32_t i = 0; i < num_readers; ++i) {
      num_wrong.push_back(in_thread([i, reader = reader_of(ring, i, i % 2 == 0 ? 0 : 50)] {
        std::uint64_t wrong = 0;
        for (std::uint64_t n = 0; n < kCount; ++n) {
          if (read_text(*reader) != message(n, 300)) ++wrong;
          if (n % 97 == i) std::this_thread::yield();
        }
        return wrong;
      }));
    }
    const auto writer = RingWriter::attach(ring, num_readers == 2 ? 50 : 0).value();
    for (std::uint64_t n = 0; n < kCount; ++n) write_text(*writer, message(n, 300));
    for (auto& wrong : num_wrong) BOOST_TEST(wrong.get() == 0u);
  }
}

BOOST_AUTO_TEST_CASE(a_reader_that_comes_late_misses_nothing) {
  const auto ring = make_ring({.num_chunks = 4});
  const auto writer = writer_of(ring);
  write_text(*writer, "one");
  write_text(*writer, "two");
  const auto reader = reader_of(ring);
  BOOST_TEST(read_text(*reader) == "one");
  BOOST_TEST(read_text(*reader) == "two");
}

BOOST_AUTO_TEST_CASE(a_read_waits_no_longer_than_its_deadline) {
  const auto ring = make_ring();
  const auto writer = writer_of(ring);
  const auto reader = reader_of(ring);
  const Deadline deadline = in(20ms);
  BOOST_TEST(read_text(*reader, deadline) == "(none)");
  BOOST_TEST((std::chrono::steady_clock::now() >= deadline));
}

BOOST_AUTO_TEST_CASE(a_slow_reader_fails_the_write_which_names_it_and_later_messages_arrive) {
  const auto ring = make_ring({.num_readers = 2, .num_chunks = 2, .chunk_bytes = 64});
  const auto writer = writer_of(ring);
  const auto quick = reader_of(ring, 0);
  const auto slow = reader_of(ring, 1);
  write_text(*writer, "one");
  BOOST_TEST(read_text(*quick) == "one");
  // Its first chunk is published before there is no second one.
  const Error error = write_error(*writer, std::string(100, 'x'), in(5ms));
  BOOST_TEST((error.code == ErrorCode::kTimeout));
  BOOST_TEST(mentions(error, "reader 1 of"));
  BOOST_TEST(mentions(error, "all 2 chunks"));
  BOOST_TEST(read_text(*slow) == "one");
  BOOST_TEST(read_text(*quick, in(0ms)) == "(none)");
  BOOST_TEST(read_text(*slow, in(0ms)) == "(none)");
  write_text(*writer, "two");
  BOOST_TEST(read_text(*quick) == "two");
  BOOST_TEST(read_text(*slow) == "two");
}

BOOST_AUTO_TEST_CASE(closing_wakes_a_waiting_reader_once_all_is_read) {
  const auto ring = make_ring();
  const auto writer = writer_of(ring);
  write_text(*writer, "last");
  std::latch has_read(1);
  auto reading = in_thread([&, reader = reader_of(ring)] {
    const std::string text = read_text(*reader);
    has_read.count_down();
    return std::pair(text, read_error(*reader));
  });
  has_read.wait();
  ring->close();
  const auto [text, error] = reading.get();
  BOOST_TEST(text == "last");
  BOOST_TEST((error.code == ErrorCode::kAborted));
  BOOST_TEST(mentions(error, "closed"));
  BOOST_TEST((write_error(*writer, "too late").code == ErrorCode::kAborted));
}

BOOST_AUTO_TEST_CASE(what_was_written_before_closing_is_still_read) {
  const auto ring = make_ring();
  write_text(*writer_of(ring), "kept");
  const auto reader = reader_of(ring);
  BOOST_TEST(read_text(*reader) == "kept");
  BOOST_TEST((read_error(*reader).code == ErrorCode::kAborted));
}

BOOST_AUTO_TEST_CASE(closing_wakes_a_waiting_writer) {
  const auto ring = make_ring({.num_chunks = 2});
  const auto writer = writer_of(ring);
  const auto reader = reader_of(ring);
  write_text(*writer, "1");
  write_text(*writer, "2");
  std::latch writes(1);
  auto writing = in_thread([&] {
    writes.count_down();
    return write_error(*writer, "3");
  });
  writes.wait();
  ring->close();
  BOOST_TEST((writing.get().code == ErrorCode::kAborted));
}

BOOST_AUTO_TEST_CASE(a_detached_reader_blocks_nobody_and_gets_an_error) {
  const auto ring = make_ring({.num_readers = 2, .num_chunks = 2});
  const auto writer = writer_of(ring);
  const auto reader = reader_of(ring, 0);
  const auto stuck = reader_of(ring, 1);
  write_text(*writer, "0");
  write_text(*writer, "1");
  std::latch writes(1);
  auto writing = in_thread([&] {
    writes.count_down();
    return write_error(*writer, "2");
  });
  BOOST_TEST(read_text(*reader) == "0");
  BOOST_TEST(read_text(*reader) == "1");
  writes.wait();
  ring->detach_reader(1);
  BOOST_TEST(ring->is_detached(1));
  BOOST_TEST(read_text(*reader) == "2");
  BOOST_TEST((writing.get().code == ErrorCode::kOk));
  const Error error = read_error(*stuck);
  BOOST_TEST((error.code == ErrorCode::kAborted));
  BOOST_TEST(mentions(error, "reader 1"));
}

BOOST_AUTO_TEST_CASE(a_message_during_which_its_reader_was_detached_is_invalid) {
  const auto ring = make_ring();
  const auto writer = writer_of(ring);
  const auto reader = reader_of(ring);
  write_text(*writer, "text");
  auto read = reader->read(patient(), [&](std::span<const char>) { ring->detach_reader(0); });
  BOOST_REQUIRE(!read.ok());
  BOOST_TEST((read.error().code == ErrorCode::kAborted));
}

BOOST_AUTO_TEST_CASE(a_ring_without_readers_reports_it) {
  const auto ring = make_ring({.num_readers = 2, .num_chunks = 2});
  const auto writer = writer_of(ring);
  write_text(*writer, "1");
  reader_of(ring, 0).reset();
  reader_of(ring, 1).reset();
  write_text(*writer, "2");  // space that was found before
  BOOST_TEST((write_error(*writer, "3").code == ErrorCode::kUnavailable));
}

BOOST_AUTO_TEST_CASE(a_ring_has_one_writer_and_each_reader_once) {
  const auto ring = make_ring({.num_readers = 2});
  const auto writer = writer_of(ring);
  const auto second_writer = RingWriter::attach(ring, 0);
  BOOST_REQUIRE(!second_writer.ok());
  BOOST_TEST(mentions(second_writer.error(), std::to_string(::getpid())));
  const auto reader = reader_of(ring, 1);
  BOOST_TEST(!RingReader::attach(ring, 1, 0).ok());
  const auto no_such = RingReader::attach(ring, 2, 0);
  BOOST_REQUIRE(!no_such.ok());
  BOOST_TEST(mentions(no_such.error(), "2 readers, no reader 2"));
}

BOOST_AUTO_TEST_CASE(options_out_of_bounds_are_refused_with_value_and_limit) {
  const auto refused = [](RingOptions options) {
    const auto ring = SharedMemoryRing::create(options);
    BOOST_REQUIRE(!ring.ok());
    BOOST_TEST((ring.error().code == ErrorCode::kInvalidArgument));
    return ring.error().message;
  };
  BOOST_TEST(refused({.num_readers = 0}).find("0 readers") != std::string::npos);
  BOOST_TEST(refused({.num_readers = 257}).find("257") != std::string::npos);
  BOOST_TEST(refused({.num_chunks = 6}).find("6 chunks") != std::string::npos);
  BOOST_TEST(refused({.num_chunks = 1}).find("1 chunks") != std::string::npos);
  BOOST_TEST(refused({.chunk_bytes = 100}).find("100 bytes") != std::string::npos);
  BOOST_TEST(refused({.chunk_bytes = 2 * kMaxRingChunkBytes}).find("bytes") != std::string::npos);
  BOOST_TEST(refused({.build_id = std::string(64, 'b')}).find("64") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(memory_is_taken_as_messages_are_long) {
  const auto ring = make_ring({.num_chunks = 8, .chunk_bytes = 16 << 20});
  const auto writer = writer_of(ring);
  const auto reader = reader_of(ring);
  for (std::uint64_t n = 0; n < 100; ++n) {
    write_text(*writer, message(n, 2000));
    read_text(*reader);
  }
  struct stat status {};
  const std::string fd = ring->name().substr(ring->name().find(':', 5) + 1);
  BOOST_REQUIRE(::fstat(std::stoi(fd), &status) == 0);
  BOOST_TEST(status.st_blocks * 512 <= 16 * 4096);
}

// ---- Names and headers -------------------------------------------------------------------------

Error open_error(const std::string& name, std::string_view build_id = "test") {
  const auto ring = SharedMemoryRing::open(name, build_id);
  BOOST_REQUIRE(!ring.ok());
  return ring.error();
}

BOOST_AUTO_TEST_CASE(what_is_not_a_name_is_refused) {
  for (const char* name : {"", "ring:", "ring:1:2", "ring:1:2:", "ring:1:2:xyz", "ring:1:2:3:4",
                           "ring:-1:2:3", "ring:1:-2:3", "ring:99999999999:1:1", "shm:1:2:3"}) {
    BOOST_TEST_CONTEXT(name) { BOOST_TEST((open_error(name).code == ErrorCode::kInvalidArgument)); }
  }
}

BOOST_AUTO_TEST_CASE(another_build_is_refused_by_name) {
  const auto ring = make_ring({.build_id = "troupe 1, messages aa"});
  const Error error = open_error(ring->name(), "troupe 1, messages bb");
  BOOST_TEST((error.code == ErrorCode::kUnsupported));
  BOOST_TEST(mentions(error, "made by build 'troupe 1, messages aa'"));
  BOOST_TEST(mentions(error, "this is build 'troupe 1, messages bb'"));
}

BOOST_AUTO_TEST_CASE(a_ring_that_is_gone_is_not_another_file_that_has_its_number) {
  std::string name = make_ring()->name();
  BOOST_TEST((open_error(name).code == ErrorCode::kUnavailable));
  const auto other = make_ring();
  const std::string token = name.substr(name.rfind(':'));
  name = other->name().substr(0, other->name().rfind(':')) + token;
  BOOST_TEST((open_error(name).code == ErrorCode::kUnavailable));
  // A file of some other kind at this number.
  const std::string self = "ring:" + std::to_string(::getpid());
  BOOST_TEST((open_error(self + ":0" + token).code == ErrorCode::kUnavailable));
  const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  const Error error = open_error(self + ":" + std::to_string(file) + token);
  BOOST_TEST((error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kIo));
  ::close(file);
}

/// The bytes of a ring as another process could change them.
struct Bytes {
  explicit Bytes(const SharedMemoryRing& ring) {
    fd = std::stoi(ring.name().substr(ring.name().find(':', 5) + 1));
  }
  void put(off_t offset, std::uint64_t value, std::size_t size) const {
    BOOST_REQUIRE(::pwrite(fd, &value, size, offset) == static_cast<ssize_t>(size));
  }
  int fd;
};

// Where things are in the segment; a change of the layout needs a new layout version.
constexpr off_t kLayoutAt = 8, kNumReadersAt = 12, kNumChunksAt = 16, kChunkBytesAt = 24;
constexpr off_t kHeadAt = 128, kCellsAt = 256;

BOOST_AUTO_TEST_CASE(another_layout_is_refused_by_number) {
  const auto ring = make_ring();
  Bytes(*ring).put(kLayoutAt, 7, 4);
  const Error error = open_error(ring->name());
  BOOST_TEST((error.code == ErrorCode::kUnsupported));
  BOOST_TEST(mentions(error, "layout 7, this build has layout 1"));
}

BOOST_AUTO_TEST_CASE(a_damaged_header_is_refused) {
  const auto damaged = [](off_t offset, std::uint64_t value, std::size_t size) {
    const auto ring = make_ring();
    Bytes(*ring).put(offset, value, size);
    return open_error(ring->name()).code;
  };
  BOOST_TEST((damaged(0, 1, 8) == ErrorCode::kUnavailable));
  BOOST_TEST((damaged(kNumReadersAt, 0, 4) == ErrorCode::kCorrupt));
  BOOST_TEST((damaged(kNumReadersAt, 200, 4) == ErrorCode::kCorrupt));
  BOOST_TEST((damaged(kNumChunksAt, 5, 4) == ErrorCode::kCorrupt));
  BOOST_TEST((damaged(kNumChunksAt, 32, 4) == ErrorCode::kCorrupt));
  BOOST_TEST((damaged(kChunkBytesAt, ~std::uint64_t{0}, 8) == ErrorCode::kCorrupt));
  BOOST_TEST((damaged(kChunkBytesAt, 64, 8) == ErrorCode::kCorrupt));
}

BOOST_AUTO_TEST_CASE(impossible_chunks_and_places_are_errors_not_reads_out_of_bounds) {
  const auto damaged = [](off_t offset, std::uint64_t value, std::size_t size) {
    const auto ring = make_ring({.num_chunks = 4, .chunk_bytes = 64});
    const auto writer = writer_of(ring);
    const auto reader = reader_of(ring);
    write_text(*writer, "text");
    Bytes(*ring).put(offset, value, size);
    return read_error(*reader).code;
  };
  constexpr off_t kChunkCellAt = kCellsAt + 64;
  BOOST_TEST((damaged(kChunkCellAt, 65, 8) == ErrorCode::kCorrupt));
  BOOST_TEST((damaged(kChunkCellAt, ~std::uint64_t{0}, 8) == ErrorCode::kCorrupt));
  BOOST_TEST((damaged(kChunkCellAt + 8, 2, 4) == ErrorCode::kCorrupt));  // an end without begin
  BOOST_TEST((damaged(kChunkCellAt + 8, 7, 4) == ErrorCode::kCorrupt));
  BOOST_TEST((damaged(kHeadAt, 100 * 4, 4) == ErrorCode::kCorrupt));

  const auto ring = make_ring({.num_chunks = 4, .chunk_bytes = 64});
  const auto writer = writer_of(ring);
  Bytes(*ring).put(kCellsAt, 100 * 4, 4);
  BOOST_TEST((write_error(*writer, "text").code == ErrorCode::kCorrupt));
}

// ---- Processes ---------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(readers_in_other_processes_get_every_message) {
  constexpr std::uint64_t kCount = 2000;
  const auto before = files_in_shared_memory();
  const auto ring = make_ring({.num_readers = 2, .num_chunks = 4, .chunk_bytes = 256});
  std::vector<std::unique_ptr<Child>> children;
  for (std::uint32_t i = 0; i < 2; ++i) {
    children.push_back(
        std::make_unique<Child>([&] { return read_all_numbered(ring->name(), i, kCount, 1000); }));
  }
  const auto writer = writer_of(ring);
  for (std::uint64_t n = 0; n < kCount; ++n) write_text(*writer, message(n, 1000));
  for (const auto& child : children) BOOST_TEST(child->wait() == 0);
  BOOST_TEST((files_in_shared_memory() == before));
}

BOOST_AUTO_TEST_CASE(a_killed_reader_blocks_nobody) {
  constexpr std::uint64_t kCount = 2000;
  const auto ring = make_ring({.num_readers = 2, .num_chunks = 4, .chunk_bytes = 256});
  Child living([&] { return read_all_numbered(ring->name(), 0, kCount, 1000); });
  Child killed([&] { return read_all_numbered(ring->name(), 1, kCount, 1000); });
  const auto writer = writer_of(ring);
  for (std::uint64_t n = 0; n < kCount; ++n) {
    if (n == kCount / 2) killed.kill();
    write_text(*writer, message(n, 1000));
  }
  BOOST_TEST(ring->is_detached(1));
  BOOST_TEST(living.wait() == 0);
}

BOOST_AUTO_TEST_CASE(a_killed_writer_is_noticed_once_all_is_read) {
  const auto before = files_in_shared_memory();
  const auto ring = make_ring({.num_chunks = 4, .chunk_bytes = 256});
  Child writing([&] {
    auto opened = SharedMemoryRing::open(ring->name(), "test");
    if (!opened.ok()) return 1;
    auto writer = RingWriter::attach(*opened, 0);
    for (std::uint64_t n = 0;; ++n) {
      const std::string text = message(n, 1000);
      if (!(*writer)->write({text.data(), text.size()}, patient()).ok()) return 2;
    }
  });
  const auto reader = reader_of(ring);
  std::uint64_t num_read = 0, num_wrong = 0;
  for (;;) {
    const std::string expected = message(num_read, 1000);
    auto read = reader->read(patient(), [&](std::span<const char> bytes) {
      if (!std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end())) ++num_wrong;
    });
    if (!read.ok()) {
      BOOST_TEST((read.error().code == ErrorCode::kUnavailable));
      break;
    }
    BOOST_REQUIRE(*read);
    if (++num_read == 500) writing.kill();
  }
  BOOST_TEST(num_read >= 500u);
  BOOST_TEST(num_wrong == 0u);
  BOOST_TEST((files_in_shared_memory() == before));
}

BOOST_AUTO_TEST_CASE(
    the_ring_of_a_killed_creator_lives_as_long_as_it_is_mapped_and_leaves_nothing) {
  const auto before = files_in_shared_memory();
  int pipe_ends[2];
  BOOST_REQUIRE(::pipe(pipe_ends) == 0);
  Child creator([&] {
    auto ring = SharedMemoryRing::create({.build_id = "test"});
    auto writer = RingWriter::attach(*ring, 0);
    const std::string text = "from the dead";
    if (!(*writer)->write({text.data(), text.size()}, patient()).ok()) return 1;
    const std::string& name = (*ring)->name();
    if (::write(pipe_ends[1], name.data(), name.size()) < 0) return 2;
    for (;;) ::pause();
  });
  char buffer[128];
  const ssize_t size = ::read(pipe_ends[0], buffer, sizeof buffer);
  BOOST_REQUIRE(size > 0);
  ::close(pipe_ends[0]), ::close(pipe_ends[1]);
  const std::string name(buffer, static_cast<std::size_t>(size));
  const auto ring = SharedMemoryRing::open(name, "test").value();
  creator.kill();
  creator.wait();
  const auto reader = reader_of(ring);
  BOOST_TEST(read_text(*reader) == "from the dead");
  BOOST_TEST((read_error(*reader).code == ErrorCode::kUnavailable));
  const auto again = SharedMemoryRing::open(name, "test");
  BOOST_REQUIRE(!again.ok());
  BOOST_TEST((again.error().code == ErrorCode::kUnavailable));
  BOOST_TEST(mentions(again.error(), "has ended"));
  BOOST_TEST((files_in_shared_memory() == before));
}

}  // namespace
}  // namespace troupe
