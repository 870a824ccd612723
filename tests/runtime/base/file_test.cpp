#include "runtime/base/file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <fstream>
#include <span>

#include "runtime/base/file_descriptor.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path = fs::temp_directory_path() / ("troupe_file_test_" + std::to_string(::getpid()));
  Folder() { fs::create_directory(path); }
  ~Folder() { fs::remove_all(path); }
  [[nodiscard]] fs::path write(const std::string& bytes) const {
    std::ofstream(path / "file", std::ios::binary) << bytes;
    return path / "file";
  }
};

BOOST_AUTO_TEST_SUITE(file)

BOOST_AUTO_TEST_CASE(a_file_of_any_size_is_read_whole) {
  const Folder folder;
  for (const std::size_t size : {0U, 1U, 65535U, 65536U, 65537U, 200000U}) {
    std::string bytes(size, 'a');
    if (size > 0) bytes[size / 2] = '\0';
    const auto read = read_file(folder.write(bytes));
    BOOST_REQUIRE(read.ok());
    BOOST_CHECK(*read == bytes);
  }
}

BOOST_AUTO_TEST_CASE(all_bytes_are_written_at_their_offset_or_errno_is_set) {
  const Folder folder;
  const fs::path path = folder.write("0123456789");
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  BOOST_TEST(write_all(file.get(), std::as_bytes(std::span("abc", 3)), 4));
  BOOST_TEST(write_all(file.get(), {}, 100));
  BOOST_TEST(read_file(path).value() == "0123abc789");
  const FileDescriptor read_only(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  errno = 0;
  BOOST_TEST(!write_all(read_only.get(), std::as_bytes(std::span("abc", 3)), 0));
  BOOST_TEST(errno == EBADF);
}

BOOST_AUTO_TEST_CASE(a_missing_file_and_a_folder_are_distinguished) {
  const Folder folder;
  const auto missing = read_file(folder.path / "nothing");
  BOOST_REQUIRE(!missing.ok());
  BOOST_CHECK(missing.error().code == ErrorCode::kNotFound);
  BOOST_CHECK(missing.error().message.find("nothing") != std::string::npos);
  const auto is_folder = read_file(folder.path);
  BOOST_REQUIRE(!is_folder.ok());
  BOOST_CHECK(is_folder.error().code == ErrorCode::kIo);
}

BOOST_AUTO_TEST_CASE(a_file_over_the_limit_is_refused_with_the_limit) {
  const Folder folder;
  const fs::path path = folder.write("12345");
  BOOST_CHECK(read_file(path, 5).ok());
  const auto refused = read_file(path, 4);
  BOOST_REQUIRE(!refused.ok());
  BOOST_CHECK(refused.error().code == ErrorCode::kTooLarge);
  BOOST_CHECK(refused.error().message.find("4 bytes") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
