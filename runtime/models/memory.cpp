#include "runtime/models/memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace troupe {

Result<Memory> Memory::allocate(std::size_t num_bytes, std::string_view what) {
  if (num_bytes == 0) return Memory();
  void* address = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED)
    return Error{ErrorCode::kIo, "cannot allocate " + std::to_string(num_bytes) + " bytes for " +
                                     std::string(what) + ": " + std::strerror(errno)};
  constexpr std::size_t kHugePage = 2u << 20;
  if (num_bytes >= kHugePage) madvise(address, num_bytes, MADV_HUGEPAGE);  // only a hint
  return Memory({static_cast<std::byte*>(address), num_bytes});
}

Memory::~Memory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace troupe
