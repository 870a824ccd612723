#include "runtime/base/mapped_file.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <functional>
#include <string>

namespace troupe {
namespace {

namespace fs = std::filesystem;

struct Ending {
  int status = 0;      ///< as waitpid has it
  std::string errors;  ///< what was written to standard error
};

/// How a process of its own ends that does this.
Ending run_in_child(const std::function<void()>& run) {
  std::array<int, 2> pipe{};
  BOOST_REQUIRE(::pipe(pipe.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe[1], STDERR_FILENO);
    run();
    ::_exit(0);
  }
  ::close(pipe[1]);
  Ending ending;
  std::array<char, 256> piece{};
  for (ssize_t count = 0; (count = ::read(pipe[0], piece.data(), piece.size())) > 0;)
    ending.errors.append(piece.data(), static_cast<std::size_t>(count));
  ::close(pipe[0]);
  ::waitpid(child, &ending.status, 0);
  return ending;
}

/// A file of two pages.
class TwoPages {
 public:
  explicit TwoPages(const std::string& name)
      : path_(fs::temp_directory_path() / (name + "-" + std::to_string(getpid()))) {
    std::ofstream(path_, std::ios::binary) << std::string(2 * page_bytes(), 'x');
  }
  ~TwoPages() { fs::remove(path_); }
  TwoPages(const TwoPages&) = delete;
  TwoPages& operator=(const TwoPages&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }
  static std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

 private:
  fs::path path_;
};

void touch(const MappedFile& file, std::size_t at) {
  const volatile std::byte* bytes = file.bytes().data();
  (void)bytes[at];
}

BOOST_AUTO_TEST_CASE(a_file_that_is_cut_while_it_is_mapped_is_named_by_the_process_that_it_ends) {
  const TwoPages cut("mapped-and-cut");
  const TwoPages whole("mapped-and-whole");
  const Ending ending = run_in_child([&] {
    MappedFile first = MappedFile::open(whole.path()).value();
    MappedFile second = MappedFile::open(cut.path()).value();
    const MappedFile moved = std::move(second);
    fs::resize_file(cut.path(), 10);
    touch(first, TwoPages::page_bytes());
    touch(moved, 0);  // the rest of the last page that there is
    touch(moved, TwoPages::page_bytes());
  });
  BOOST_TEST(WIFEXITED(ending.status));
  BOOST_TEST(WEXITSTATUS(ending.status) == kMappedFileLostStatus);
  BOOST_TEST(ending.errors == "troupe: " + cut.path().string() +
                                  " was cut short while it was mapped, or its disk cannot read it; "
                                  "this process ends\n");
}

BOOST_AUTO_TEST_CASE(a_process_that_called_report_loss_survives_a_truncated_file) {
  const TwoPages cut("mapped-and-reported");
  const TwoPages whole("mapped-beside-it");
  const Ending ending = run_in_child([&] {
    const MappedFile file = MappedFile::open(cut.path()).value();
    const MappedFile other = MappedFile::open(whole.path()).value();
    file.report_loss();
    if (!file.check().ok()) ::_exit(1);
    fs::resize_file(cut.path(), 10);
    const auto lost = file.check();  // before anybody has met the gap
    if (lost.ok() || lost.error().message.find(cut.path().string()) == std::string::npos)
      ::_exit(2);
    touch(file, TwoPages::page_bytes());
    if (file.bytes()[2 * TwoPages::page_bytes() - 1] != std::byte{0xff}) ::_exit(4);
    std::ofstream(cut.path(), std::ios::binary) << std::string(2 * TwoPages::page_bytes(), 'x');
    if (file.check().ok() || !other.check().ok()) ::_exit(3);  // it was lost meanwhile
  });
  BOOST_TEST(WIFEXITED(ending.status));
  BOOST_TEST(WEXITSTATUS(ending.status) == 0);
  BOOST_TEST(ending.errors == "troupe: " + cut.path().string() +
                                  " was cut short while it was mapped, or its disk cannot read "
                                  "it\n");
}

BOOST_AUTO_TEST_CASE(a_file_that_is_read_in_after_it_was_cut_is_an_error) {
  const TwoPages cut("mapped-cut-and-read-in");
  const MappedFile file = MappedFile::open(cut.path()).value();
  BOOST_TEST(file.read_in(file.bytes()).ok());
  fs::resize_file(cut.path(), 10);
  BOOST_TEST(!file.read_in(file.bytes()).ok());
}

}  // namespace
}  // namespace troupe
