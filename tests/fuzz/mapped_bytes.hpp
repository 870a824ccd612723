#pragma once
// A fuzzer's bytes as those of a mapped file.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace troupe {

/// A copy that is aligned as a mapping is; the fuzzer's buffer need not be.
class MappedBytes {
 public:
  MappedBytes(const std::uint8_t* data, std::size_t size)
      : words_(size / sizeof(std::uint64_t) + 1), size_(size) {
    if (size != 0) std::memcpy(words_.data(), data, size);
  }
  [[nodiscard]] std::span<const std::byte> get() const noexcept {
    return std::as_bytes(std::span(words_)).first(size_);
  }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t size_;
};

}  // namespace troupe
