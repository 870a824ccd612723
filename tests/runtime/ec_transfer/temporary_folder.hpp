#pragma once
// A folder for the files of one test.

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>

namespace troupe {

class TransferFolder {
 public:
  TransferFolder() {
    static std::atomic<int> number = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("ec-transfer-" + std::to_string(getpid()) + "-" + std::to_string(++number));
    std::filesystem::create_directories(path_);
  }
  ~TransferFolder() { std::filesystem::remove_all(path_); }
  TransferFolder(const TransferFolder&) = delete;
  TransferFolder& operator=(const TransferFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// A configuration for a connector whose extra configuration names this folder under `key`.
  [[nodiscard]] std::string extra(const std::string& key) const {
    return "{\"" + key + "\":\"" + path_.string() + "\"}";
  }

 private:
  std::filesystem::path path_;
};

}  // namespace troupe
