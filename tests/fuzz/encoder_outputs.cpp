// Stored outputs of encoders, whose files are changed: those of ECExampleConnector (safetensors)
// and the segments of ECSharedMemoryConnector. Values of the expected shape, or errors.
//
// Input: what is written over the begin of the files.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/base/check.hpp"
#include "runtime/base/file.hpp"
#include "runtime/ec_transfer/connectors.hpp"

namespace {

using namespace troupe;
namespace fs = std::filesystem;

constexpr OutputShape kShape{.num_rows = 2, .hidden_size = 3};

struct Stores {
  Stores() : folder(fs::temp_directory_path() / ("fuzz_outputs_" + std::to_string(::getpid()))) {
    fs::create_directories(folder);
    const std::string path = folder.string();
    files = open_file_store({.config = config(R"({"shared_storage_path":")" + path + R"("})"),
                             .encoder_key = "encoder"})
                .value();
    segments = open_shared_memory_store({.config = config(R"({"directory":")" + path + R"("})"),
                                         .encoder_key = "encoder"})
                   .value();
  }
  ~Stores() {
    segments.reset();
    std::error_code error;
    fs::remove_all(folder, error);
  }
  static ConnectorConfig config(std::string extra) {
    return {.connector = "C", .extra_config = std::move(extra)};
  }

  fs::path folder;
  std::shared_ptr<OutputStore> files;
  std::shared_ptr<OutputStore> segments;
};

void load_changed(const fs::path& folder, OutputStore& store, const std::string& bytes) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  CHECK(store.save("item", kShape, values).ok());
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.file_size() == 0) continue;
    std::fstream file(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
    file << bytes;
  }
  const auto loaded = store.load("item", kShape);
  if (!loaded.ok()) {
    CHECK(!loaded.error().message.empty());
    return;
  }
  CHECK(loaded->values.size() == kShape.num_values());
  float sum = 0;
  for (const float value : loaded->values) sum += value;
  static_cast<void>(sum);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Stores stores;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  load_changed(stores.folder / "item", *stores.files, bytes);
  for (const auto& entry : fs::directory_iterator(stores.folder))
    if (entry.path().filename().string().starts_with("troupe-ec-"))
      load_changed(entry.path(), *stores.segments, bytes);
  return 0;
}
