#include "runtime/models/vocabulary_head.hpp"

#include <span>

namespace troupe {
namespace {

std::span<std::byte> bytes_of_rows(Matrix rows) {
  return std::as_writable_bytes(
      std::span(rows.data, static_cast<std::size_t>(rows.num_rows * rows.num_cols)));
}

}  // namespace

VocabularyHead::VocabularyHead(WeightLoader& loader, const std::string& name,
                               std::int64_t vocab_size, std::int64_t hidden_size)
    : matrix_(loader, {{name, vocab_size, loader.shard(vocab_size)}}, hidden_size, false,
              MatrixRole::kHead),
      vocab_size_(vocab_size),
      num_ranks_(loader.parallel().tensor_parallel_size) {}

bool VocabularyHead::apply(Device& device, Scratch scratch, ConstMatrix hidden, Communicator* peers,
                           Matrix out) const {
  if (peers == nullptr || peers->group_size() == 1) {
    matrix_.apply(device.ops(), device.context(), hidden, out);
    return true;
  }
  const auto cols_of = [this](std::int32_t rank) { return part_of(vocab_size_, rank, num_ranks_); };
  const Matrix mine = scratch.take(hidden.num_rows, cols_of(peers->group_rank()).count);
  matrix_.apply(device.ops(), device.context(), hidden, mine);
  if (peers->group_rank() != 0) {
    peers->send(bytes_of_rows(mine), peers->group_begin());
    return false;
  }
  for (std::int32_t member = 0; member < peers->group_size(); ++member) {
    const Slice cols = cols_of(member);
    const Matrix part(mine.data, hidden.num_rows, cols.count);
    if (member != 0 && !peers->recv(bytes_of_rows(part), peers->group_begin() + member))
      return false;
    for (std::int64_t row = 0; row < part.num_rows; ++row)
      device.copy(out.row(row) + cols.begin, part.row(row),
                  static_cast<std::size_t>(cols.count) * sizeof(float));
  }
  return true;
}

MixerMemory VocabularyHead::memory(Device& device, std::int64_t max_rows) const noexcept {
  MixerMemory memory{.workspace_bytes =
                         device.ops().matmul_workspace_bytes(matrix_.spec(), max_rows)};
  if (num_ranks_ > 1)
    memory.scratch_bytes = Scratch::padded_bytes(max_rows, matrix_.spec().num_rows + 1);
  return memory;
}

}  // namespace troupe
