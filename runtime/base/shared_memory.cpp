#include "runtime/base/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace troupe {
namespace {

namespace ipc = boost::interprocess;

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

/// A memfd as Boost.Interprocess's memory mappable.
struct Mappable {
  int descriptor;
  [[nodiscard]] ipc::mapping_handle_t get_mapping_handle() const { return {descriptor, false}; }
  [[nodiscard]] ipc::mode_t get_mode() const { return ipc::read_write; }
};

Error io_error(const char* action, std::size_t num_bytes, int error) {
  return {ErrorCode::kIo, std::string("cannot ") + action + " shared memory of " +
                              std::to_string(num_bytes) + " bytes: " + std::strerror(error)};
}

}  // namespace

SharedMemory::SharedMemory() noexcept = default;
SharedMemory::SharedMemory(SharedMemory&&) noexcept = default;
SharedMemory& SharedMemory::operator=(SharedMemory&&) noexcept = default;
SharedMemory::~SharedMemory() = default;

Result<SharedMemory> SharedMemory::create(const char* name, std::size_t num_bytes) {
  FileDescriptor file(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid() || ::ftruncate(file.get(), static_cast<off_t>(num_bytes)) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return io_error("create", num_bytes, errno);
  }
  return map(std::move(file), num_bytes);
}

Result<SharedMemory> SharedMemory::map(FileDescriptor file, std::size_t num_bytes) {
  const std::optional<std::size_t> size = segment_bytes(file);
  if (size != num_bytes) {
    return Error{ErrorCode::kCorrupt, size
                                          ? "a shared memory segment has " + std::to_string(*size) +
                                                " bytes, not " + std::to_string(num_bytes)
                                          : "a file is not a shared memory segment"};
  }
  SharedMemory memory;
  memory.file_ = std::move(file);
  try {
    memory.region_ = std::make_unique<ipc::mapped_region>(Mappable{memory.file_.get()},
                                                          ipc::read_write, 0, num_bytes);
  } catch (const ipc::interprocess_exception& error) {
    return io_error("map", num_bytes, error.get_native_error());
  }
  return memory;
}

std::optional<std::size_t> SharedMemory::segment_bytes(const FileDescriptor& file) {
  struct stat status {};
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals || ::fstat(file.get(), &status) != 0 ||
      !S_ISREG(status.st_mode)) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(status.st_size);
}

std::span<std::byte> SharedMemory::bytes() const noexcept {
  if (region_ == nullptr) return {};
  return {static_cast<std::byte*>(region_->get_address()), region_->get_size()};
}

}  // namespace troupe
