#include "runtime/base/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file.hpp"
#include "runtime/base/file_descriptor.hpp"

namespace troupe {

/// A node of an append-only list: the signal handler walks it at any time, on any thread. A node
/// whose mapping is gone has no bytes and is reused.
struct MappedFile::Watched {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> reports_loss{false};
  std::atomic<bool> is_lost{false};
  std::array<char, 1024> path{};  ///< the end of it, if it is longer
  Watched* next = nullptr;
};

namespace {

std::mutex watched_mutex;             // guards changes of the list
struct sigaction previous_action {};  // for signals that are not ours
std::uintptr_t page_bytes = 0;
/// Replaces lost pages with 0xff bytes: floats read from them are NaN, and index lists end there
/// (kNoPair of compact weights), where zeros would read out of bounds.
int ones_file = -1;
constexpr std::size_t kOnesBytes = 1 << 20;
constexpr std::string_view kLoss = " was cut short while it was mapped, or its disk cannot read it";

void write_text(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDERR_FILENO, text.data(), text.size());
    if (count <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace

std::atomic<MappedFile::Watched*> MappedFile::first_watched_{nullptr};

/// Async-signal-safe: no locks, no allocation.
void MappedFile::handle_bus_error(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (Watched* node = first_watched_.load(); node != nullptr; node = node->next) {
    if (address < node->begin.load() || address >= node->end.load()) continue;
    const bool was_lost = node->is_lost.exchange(true);
    if (node->reports_loss.load()) {
      const std::uintptr_t begin = address / page_bytes * page_bytes;
      void* const ones = ::mmap(reinterpret_cast<void*>(begin),
                                std::min<std::uintptr_t>(kOnesBytes, node->end.load() - begin),
                                PROT_READ, MAP_PRIVATE | MAP_FIXED, ones_file, 0);
      if (ones != MAP_FAILED) {
        if (was_lost) return;
        write_text("troupe: ");
        write_text(node->path.data());
        write_text(kLoss);
        write_text("\n");
        return;
      }
    }
    write_text("troupe: ");
    write_text(node->path.data());
    write_text(kLoss);
    write_text("; this process ends\n");
    ::_exit(kMappedFileLostStatus);
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0)
    return previous_action.sa_sigaction(signal, info, context);
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN)
    return previous_action.sa_handler(signal);
  // The instruction is retried, and the signal then ends the process.
  ::signal(signal, SIG_DFL);
}

void MappedFile::install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = handle_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &previous_action);
  });
}

MappedFile::Watched* MappedFile::watch(std::span<const std::byte> bytes,
                                       const std::filesystem::path& path) {
  install_handler();
  const std::scoped_lock lock(watched_mutex);
  Watched* node = first_watched_.load();
  while (node != nullptr && node->end.load() != 0) node = node->next;
  const bool is_new = node == nullptr;
  if (is_new) node = new Watched;  // never freed
  const std::string text = path.string();
  const std::size_t size = std::min(text.size(), node->path.size() - 1);
  std::copy_n(text.data() + text.size() - size, size, node->path.data());
  node->path[size] = '\0';
  node->reports_loss = node->is_lost = false;
  node->begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  node->end = reinterpret_cast<std::uintptr_t>(bytes.data()) + bytes.size();
  if (is_new) {
    node->next = first_watched_.load();
    first_watched_ = node;
  }
  return node;
}

MappedFile::MappedFile(FileDescriptor file, std::span<const std::byte> bytes,
                       const std::filesystem::path& path)
    : file_(std::move(file)), bytes_(bytes), watched_(watch(bytes, path)) {}

void MappedFile::report_loss() const noexcept {
  static const bool have_ones = [] {
    FileDescriptor file(::memfd_create("lost bytes", MFD_CLOEXEC));
    const std::vector<std::byte> ones(kOnesBytes, std::byte{0xff});
    if (!file.valid() || !write_all(file.get(), ones, 0)) return false;
    ones_file = file.release();  // never closed
    return true;
  }();
  if (watched_ != nullptr) watched_->reports_loss = have_ones;
}

Result<void> MappedFile::check() const {
  if (watched_ == nullptr) return {};
  struct stat status {};
  const bool is_whole =
      fstat(file_.get(), &status) == 0 && std::cmp_greater_equal(status.st_size, bytes_.size());
  if (is_whole && !watched_->is_lost.load()) return {};
  return Error{ErrorCode::kIo, watched_->path.data() + std::string(kLoss)};
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const auto failure = [&](const char* action) {
    return Error{
        errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
        std::string("cannot ") + action + " " + path.string() + ": " + std::strerror(errno)};
  };
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return failure("open");
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return failure("read the size of");
  const auto num_bytes = static_cast<std::size_t>(status.st_size);
  if (num_bytes == 0) return MappedFile();
  void* address = mmap(nullptr, num_bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) return failure("map");
  return MappedFile(std::move(file), {static_cast<const std::byte*>(address), num_bytes}, path);
}

Result<void> MappedFile::read_in(std::span<const std::byte> part) const {
  if (part.empty()) return {};
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<std::size_t>(part.data() - bytes_.data()) / page * page;
  const std::size_t end = static_cast<std::size_t>(part.data() - bytes_.data()) + part.size();
  auto* address = const_cast<std::byte*>(bytes_.data()) + begin;  // is only read
  if (madvise(address, end - begin, MADV_POPULATE_READ) == 0) return {};
  // Kernels before 5.14; pages are then read on first use.
  if (errno == EINVAL) return {};
  return Error{ErrorCode::kIo, std::string("cannot read what is mapped: ") + std::strerror(errno)};
}

void MappedFile::drop_pages(std::span<const std::byte> part) const noexcept {
  const std::byte* file_end = bytes_.data() + bytes_.size();
  const std::less_equal<> not_after;
  if (!not_after(bytes_.data(), part.data()) || !not_after(part.data() + part.size(), file_end))
    return;
  // Pages are relative to the start of the mapping, which is page-aligned.
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<std::size_t>(part.data() - bytes_.data());
  const std::size_t first = (begin + page - 1) / page * page;
  const std::size_t end = (begin + part.size()) / page * page;
  if (first >= end) return;
  // Only a hint; the mapping is file-backed and never written, so no data is lost.
  madvise(const_cast<std::byte*>(bytes_.data()) + first, end - first, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  watched_->begin = 0;
  watched_->end = 0;
  // munmap takes a non-const pointer; the mapping is read-only.
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace troupe
