#include "runtime/base/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <string>

#include "runtime/base/file_descriptor.hpp"

namespace troupe {

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const auto failure = [&](const char* action) {
    return Error{
        errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
        std::string("cannot ") + action + " " + path.string() + ": " + std::strerror(errno)};
  };
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));  // the mapping outlives it
  if (!file.valid()) return failure("open");
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return failure("read the size of");
  const auto num_bytes = static_cast<std::size_t>(status.st_size);
  if (num_bytes == 0) return MappedFile();
  void* address = mmap(nullptr, num_bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) return failure("map");
  return MappedFile({static_cast<const std::byte*>(address), num_bytes});
}

Result<void> MappedFile::read_in(std::span<const std::byte> part) const {
  if (part.empty()) return {};
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<std::size_t>(part.data() - bytes_.data()) / page * page;
  const std::size_t end = static_cast<std::size_t>(part.data() - bytes_.data()) + part.size();
  auto* address = const_cast<std::byte*>(bytes_.data()) + begin;  // only read
  if (madvise(address, end - begin, MADV_POPULATE_READ) == 0) return {};
  // A kernel before 5.14; then the pages come when they are used.
  if (errno == EINVAL) return {};
  return Error{ErrorCode::kIo, std::string("cannot read what is mapped: ") + std::strerror(errno)};
}

void MappedFile::drop_pages(std::span<const std::byte> part) const noexcept {
  const std::byte* file_end = bytes_.data() + bytes_.size();
  const std::less_equal<> not_after;
  if (!not_after(bytes_.data(), part.data()) || !not_after(part.data() + part.size(), file_end))
    return;
  // Pages count from the mapping's begin, which is one.
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<std::size_t>(part.data() - bytes_.data());
  const std::size_t first = (begin + page - 1) / page * page;
  const std::size_t end = (begin + part.size()) / page * page;
  if (first >= end) return;
  // Only a hint; the mapping is of a file and never written, so nothing is lost.
  madvise(const_cast<std::byte*>(bytes_.data()) + first, end - first, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  // munmap takes a plain pointer; the mapping itself is read-only.
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace troupe
