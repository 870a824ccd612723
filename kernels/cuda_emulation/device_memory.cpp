#include "kernels/cuda_emulation/device_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "kernels/cuda_emulation/sanitizer.hpp"

namespace troupe::cuda_emulation {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kGuardBytes = kAlignment;
constexpr std::byte kUnwritten{0xff};

/// All allocations, by their first byte. Threads may use devices of their own, which share this
/// memory.
struct Allocations {
  std::mutex mutex;
  std::map<std::byte*, std::size_t> sizes;
  std::size_t used_bytes = 0;
  int num_accesses = 0;
};

Allocations& allocations() {
  static Allocations all;
  return all;
}

std::size_t padded(std::size_t num_bytes) {
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Restores the guards of an allocation if they are overwritten.
std::string check_guards(std::byte* data, std::size_t num_bytes) {
  if constexpr (kHasAddressSanitizer) return {};
  const auto is_written = [](std::byte value) { return value != kUnwritten; };
  std::byte* const end = data + padded(num_bytes) + kGuardBytes;
  const bool is_broken = std::any_of(data - kGuardBytes, data, is_written) ||
                         std::any_of(data + num_bytes, end, is_written);
  if (!is_broken) return {};
  std::fill(data - kGuardBytes, data, kUnwritten);
  std::fill(data + num_bytes, end, kUnwritten);
  return "a write outside of device memory of " + std::to_string(num_bytes) + " bytes";
}

}  // namespace

void* allocate_device_memory(std::size_t num_bytes) noexcept {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  if (num_bytes > kDeviceBytes - all.used_bytes) return nullptr;
  const std::size_t total = padded(num_bytes) + 2 * kGuardBytes;
  void* const memory = ::operator new(total, std::align_val_t(kAlignment), std::nothrow);
  if (memory == nullptr) return nullptr;
  std::memset(memory, static_cast<int>(kUnwritten), total);
  std::byte* const data = static_cast<std::byte*>(memory) + kGuardBytes;
  poison(memory, total);
  if (all.num_accesses > 0) unpoison(data, num_bytes);
  all.sizes.emplace(data, num_bytes);
  all.used_bytes += num_bytes;
  return data;
}

std::string free_device_memory(void* pointer) noexcept {
  if (pointer == nullptr) return {};
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  auto* const data = static_cast<std::byte*>(pointer);
  const auto found = all.sizes.find(data);
  if (found == all.sizes.end()) return "freed a pointer that is not device memory";
  const std::size_t num_bytes = found->second;
  std::string fault = check_guards(data, num_bytes);
  unpoison(data - kGuardBytes, padded(num_bytes) + 2 * kGuardBytes);
  ::operator delete(data - kGuardBytes, std::align_val_t(kAlignment));
  all.used_bytes -= num_bytes;
  all.sizes.erase(found);
  return fault;
}

std::string check_device_memory() noexcept {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  std::string first_fault;
  for (const auto& [data, num_bytes] : all.sizes) {
    std::string fault = check_guards(data, num_bytes);
    if (first_fault.empty()) first_fault = std::move(fault);
  }
  return first_fault;
}

std::size_t free_device_bytes() noexcept {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  return kDeviceBytes - all.used_bytes;
}

DeviceAccess::DeviceAccess() noexcept {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  if (++all.num_accesses > 1) return;
  for (const auto& [data, num_bytes] : all.sizes) unpoison(data, num_bytes);
}

DeviceAccess::~DeviceAccess() {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  if (--all.num_accesses > 0) return;
  for (const auto& [data, num_bytes] : all.sizes) poison(data, num_bytes);
}

}  // namespace troupe::cuda_emulation
