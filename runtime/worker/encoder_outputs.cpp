#include "runtime/worker/encoder_outputs.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe {

Result<EncoderOutputs> EncoderOutputs::create(Device& device, std::int64_t num_rows,
                                              std::int64_t hidden_size) {
  const auto num_bytes = static_cast<std::size_t>(num_rows * hidden_size) * sizeof(float);
  ASSIGN_OR_RETURN(DeviceMemory memory, device.allocate(num_bytes, "encoder outputs"));
  return EncoderOutputs(std::move(memory), num_rows, hidden_size);
}

EncoderOutputs::EncoderOutputs(DeviceMemory memory, std::int64_t num_rows, std::int64_t hidden_size)
    : memory_(std::move(memory)), num_rows_(num_rows), hidden_size_(hidden_size) {
  clear();
}

std::span<const std::int32_t> EncoderOutputs::rows_of(const std::string& identifier) const {
  const auto found = rows_.find(identifier);
  if (found == rows_.end()) return {};
  return found->second;
}

std::span<const std::int32_t> EncoderOutputs::add(const std::string& identifier,
                                                  std::int64_t num_rows) {
  if (num_rows > num_free_) return {};
  const auto [place, is_new] = rows_.try_emplace(identifier);
  CHECK(is_new, identifier);
  std::vector<std::int32_t>& rows = place->second;
  auto left = static_cast<std::int32_t>(num_rows);
  // The first run that holds all; else the first ones.
  auto run = std::ranges::find_if(free_, [&](const auto& each) { return each.second >= left; });
  if (run == free_.end()) run = free_.begin();
  while (left > 0) {
    const auto [begin, count] = *run;
    const std::int32_t taken = std::min(count, left);
    for (std::int32_t row = begin; row < begin + taken; ++row) rows.push_back(row);
    run = free_.erase(run);
    if (taken < count) free_.emplace(begin + taken, count - taken);
    left -= taken;
  }
  num_free_ -= num_rows;
  return rows;
}

void EncoderOutputs::remove(const std::string& identifier) {
  const auto found = rows_.find(identifier);
  if (found == rows_.end()) return;
  for (const std::int32_t row : found->second) release(row, 1);
  rows_.erase(found);
}

void EncoderOutputs::release(std::int32_t begin, std::int32_t count) {
  num_free_ += count;
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + count) {
    count += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      previous->second += count;
      return;
    }
  }
  free_.emplace_hint(next, begin, count);
}

void EncoderOutputs::clear() {
  rows_.clear();
  free_.clear();
  num_free_ = num_rows_;
  if (num_rows_ > 0) free_.emplace(0, static_cast<std::int32_t>(num_rows_));
}

}  // namespace troupe
