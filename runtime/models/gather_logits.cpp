#include "runtime/models/gather_logits.hpp"

#include <span>

#include "runtime/models/parallel.hpp"

namespace troupe {
namespace {

std::span<std::byte> bytes_of_rows(Matrix rows) {
  return std::as_writable_bytes(
      std::span(rows.data, static_cast<std::size_t>(rows.num_rows * rows.num_cols)));
}

}  // namespace

bool gather_logits(Device& device, Scratch scratch, Communicator* peers, Matrix out,
                   const std::function<void(Matrix part)>& compute) {
  if (peers == nullptr || peers->group_size() == 1) {
    compute(out);
    return true;
  }
  const auto cols_of = [&](std::int32_t rank) {
    return part_of(out.num_cols, rank, peers->group_size());
  };
  const Matrix mine = scratch.take(out.num_rows, cols_of(peers->group_rank()).count);
  compute(mine);
  if (peers->group_rank() != 0) {
    peers->send(bytes_of_rows(mine), peers->group_begin());
    return false;
  }
  for (std::int32_t member = 0; member < peers->group_size(); ++member) {
    const Slice cols = cols_of(member);
    const Matrix part(mine.data, out.num_rows, cols.count);
    if (member != 0 && !peers->recv(bytes_of_rows(part), peers->group_begin() + member))
      return false;
    for (std::int64_t row = 0; row < part.num_rows; ++row)
      device.copy(out.row(row) + cols.begin, part.row(row),
                  static_cast<std::size_t>(cols.count) * sizeof(float));
  }
  return true;
}

std::int64_t gather_logits_bytes(std::int64_t max_rows, std::int64_t num_own_columns,
                                 std::int32_t num_ranks) noexcept {
  // Another rank may have one column more.
  return num_ranks == 1 ? 0 : Scratch::padded_bytes(max_rows, num_own_columns + 1);
}

}  // namespace troupe
