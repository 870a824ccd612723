#pragma once
// Where a page of keys and values has which number.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "messages/cache.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/device.hpp"

namespace troupe {

/// The order of the numbers in a page is private to the kernels. It is found out here: they write
/// tokens whose numbers say where they come from. In the order of rows a block is [token, head, key
/// and value], as vLLM's connectors have it in their files.
class PageOrder {
 public:
  /// Errors: kUnsupported, keys and values of 8 bits, latents, or a device that is not the host.
  [[nodiscard]] static Result<PageOrder> of(Device& device, const KVCacheSpec& spec);

  [[nodiscard]] std::int64_t num_heads() const noexcept { return num_heads_; }
  /// Numbers of a head of a token: its key and its value.
  [[nodiscard]] std::int64_t content_size() const noexcept { return content_size_; }
  [[nodiscard]] std::size_t page_bytes() const noexcept { return rows_.size() * number_bytes_; }
  /// Both of page_bytes().
  void to_rows(std::span<const std::byte> page, std::span<std::byte> rows) const;
  void to_page(std::span<const std::byte> rows, std::span<std::byte> page) const;

 private:
  std::int64_t num_heads_ = 0;
  std::int64_t content_size_ = 0;
  std::size_t number_bytes_ = 0;
  std::vector<std::uint32_t> rows_;  // of each number of a page: its index in the rows
};

}  // namespace troupe
