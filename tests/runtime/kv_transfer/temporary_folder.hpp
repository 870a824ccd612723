#pragma once
// A folder for the files of one test.

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>

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

}  // namespace troupe
