// The memory of shared images, with bytes of the segment changed by another process: items or none,
// and no access outside of the segment.
//
// Input: a count of changes, three bytes for each (where, little-endian; what), then the bytes of
// an item.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "runtime/base/check.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/transport/shared_items.hpp"
#include "tests/fuzz/byte_changes.hpp"

namespace {

using namespace troupe;

/// The mutex in the header is the C library's, which trusts it.
constexpr off_t kMutexBegin = 40;
constexpr off_t kMutexEnd = kMutexBegin + static_cast<off_t>(sizeof(pthread_mutex_t));

std::filesystem::path file_of_items() {
  std::error_code error;
  const std::filesystem::path memory = "/dev/shm";
  const auto folder = std::filesystem::is_directory(memory, error)
                          ? memory
                          : std::filesystem::temp_directory_path();
  return folder / ("fuzz_shared_items_" + std::to_string(::getpid()));
}

void use(SharedItems& items, const SharedItems::Bytes& bytes) {
  const std::array<std::string, 3> names = {"a", "b", "c"};
  const std::array<SharedItems::Bytes, 2> parts = {bytes, bytes};
  items.keep(std::span(names).first(2), parts);
  for (const std::string& name : names) {
    CHECK(items.num_parts(name) <= 64);
    if (const auto found = items.find(name); found != nullptr) {
      CHECK(found->size() <= SharedItems::kMinBytes);
      static_cast<void>(unpack_shared_item(*found));
      if (const auto input = unpack_encoder_input(*found))
        CHECK(input->values.size_bytes() <= 4 * found->size());
    }
    if (const auto pinned = items.pin(name)) {
      std::size_t sum = 0;
      for (const char byte : pinned->bytes) sum += static_cast<unsigned char>(byte);
      CHECK(sum <= 255 * pinned->bytes.size());
      static_cast<void>(items.pin(pinned->address));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto [changes, rest] = take_changes(data, size);
  const auto bytes = std::make_shared<const std::vector<char>>(rest.begin(), rest.end());

  const SharedItems::Options options{.file = file_of_items(),
                                     .max_bytes = SharedItems::kMinBytes,
                                     .max_object_bytes = SharedItems::kMinBytes};
  const auto first = SharedItems::open(options);
  if (!first.ok()) return 0;
  use(**first, bytes);
  {
    const FileDescriptor file(::open(options.file.c_str(), O_RDWR | O_CLOEXEC));
    for (std::size_t i = 0; i < changes.size(); i += 3) {
      const auto where = static_cast<off_t>(changes[i] | changes[i + 1] << 8);
      if (where >= kMutexBegin && where < kMutexEnd) continue;
      if (::pwrite(file.get(), &changes[i + 2], 1, where) < 0) break;
    }
  }
  use(**first, bytes);
  // Another process that comes; a segment that is not one cannot be opened before the last has
  // left, which takes as long as the deadline.
  if (const auto pinned = (*first)->pin("a")) {
    if (const auto second = SharedItems::open_for(pinned->address); second.ok())
      use(**second, bytes);
  }
  (*first)->clear();
  use(**first, bytes);
  return 0;
}
