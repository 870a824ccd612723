#pragma once
// A folder for the files of one test.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/file_descriptor.hpp"

namespace troupe {

class BlockFolder {
 public:
  BlockFolder() {
    static std::atomic<int> number = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("kv-transfer-" + std::to_string(getpid()) + "-" + std::to_string(++number));
    std::filesystem::create_directories(path_);
  }
  ~BlockFolder() { std::filesystem::remove_all(path_); }
  BlockFolder(const BlockFolder&) = delete;
  BlockFolder& operator=(const BlockFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Pipes in the places of files: who opens one hangs.
class HangingFiles {
 public:
  explicit HangingFiles(std::vector<std::filesystem::path> files) : files_(std::move(files)) {
    for (const auto& file : files_) {
      std::filesystem::remove(file);
      BOOST_REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    }
  }
  /// From now on they are empty.
  void release() {
    for (const auto& file : files_) ends_.emplace_back(::open(file.c_str(), O_RDWR | O_CLOEXEC));
  }

 private:
  std::vector<std::filesystem::path> files_;
  std::vector<FileDescriptor> ends_;
};

}  // namespace troupe
