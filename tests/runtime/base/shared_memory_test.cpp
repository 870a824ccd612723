#include "runtime/base/shared_memory.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdio>

namespace troupe {
namespace {

constexpr std::size_t kBytes = 10'000;  // not a whole number of pages

FileDescriptor duplicate(const FileDescriptor& file) {
  return FileDescriptor(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
}

BOOST_AUTO_TEST_CASE(a_new_segment_is_zero_and_is_shared_with_those_who_map_it) {
  auto memory = SharedMemory::create("test", kBytes);
  BOOST_REQUIRE(memory.ok());
  BOOST_TEST(memory->bytes().size() == kBytes);
  BOOST_TEST(std::ranges::all_of(memory->bytes(), [](std::byte b) { return b == std::byte{0}; }));

  const pid_t child = ::fork();
  if (child == 0) {
    auto mine = SharedMemory::map(duplicate(memory->file()), kBytes);
    if (!mine.ok()) ::_exit(1);
    mine->bytes()[kBytes - 1] = std::byte{7};
    ::_exit(0);
  }
  int status = 0;
  BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
  BOOST_TEST(status == 0);
  BOOST_TEST(static_cast<int>(memory->bytes()[kBytes - 1]) == 7);

  SharedMemory moved = std::move(memory).value();
  BOOST_TEST(static_cast<int>(moved.bytes()[kBytes - 1]) == 7);
  BOOST_TEST(SharedMemory().bytes().empty());
}

BOOST_AUTO_TEST_CASE(the_size_of_a_segment_cannot_be_changed) {
  const auto memory = SharedMemory::create("test", kBytes);
  BOOST_REQUIRE(memory.ok());
  BOOST_TEST(::ftruncate(memory->file().get(), 0) != 0);
  BOOST_TEST(::ftruncate(memory->file().get(), 2 * kBytes) != 0);
}

BOOST_AUTO_TEST_CASE(a_segment_of_another_size_or_another_file_is_refused) {
  const auto memory = SharedMemory::create("test", kBytes);
  BOOST_REQUIRE(memory.ok());
  const auto larger = SharedMemory::map(duplicate(memory->file()), kBytes + 1);
  BOOST_REQUIRE(!larger.ok());
  BOOST_TEST((larger.error().code == ErrorCode::kCorrupt));
  BOOST_TEST(larger.error().message == "a shared memory segment has 10000 bytes, not 10001");

  FileDescriptor file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const auto executable = SharedMemory::map(std::move(file), kBytes);
  BOOST_REQUIRE(!executable.ok());
  BOOST_TEST(executable.error().message == "a file is not a shared memory segment");
}

BOOST_AUTO_TEST_CASE(a_segment_too_large_to_exist_is_an_error_with_its_size) {
  const auto memory = SharedMemory::create("test", std::size_t{1} << 62);
  BOOST_REQUIRE(!memory.ok());
  BOOST_TEST((memory.error().code == ErrorCode::kIo));
  BOOST_TEST(memory.error().message.find("4611686018427387904 bytes") != std::string::npos);
}

}  // namespace
}  // namespace troupe
