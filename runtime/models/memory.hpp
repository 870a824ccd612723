#pragma once
// Large memory: zero-filled pages straight from the operating system.

#include <cstddef>
#include <span>
#include <utility>

#include "runtime/base/result.hpp"

namespace troupe {

/// Owns a range of zero-filled, page-aligned memory. Pages take no physical memory until they are
/// touched, so a buffer may be sized for the worst case. Huge pages are asked for where large.
class Memory {
 public:
  Memory() = default;
  /// `what` names the purpose in errors. Errors: kIo with the number of bytes.
  static Result<Memory> allocate(std::size_t num_bytes, std::string_view what);
  Memory(Memory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Memory();

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::byte* data() const noexcept { return bytes_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }

 private:
  explicit Memory(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace troupe
