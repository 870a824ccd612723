#include "runtime/models/adapter_batch.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe {

std::int64_t most_adapter_ranks(std::int64_t max_rank) noexcept {
  // Each piece's are filled up.
  constexpr std::int64_t kStep = AdapterWeight::kRankStep;
  return AdapterWeight::kMaxPieces * ((max_rank + kStep - 1) / kStep * kStep);
}

Result<void> AdapterBatch::reserve(std::int64_t max_tokens, const AdapterLimits& limits) {
  type_ = limits.type;
  const auto num_floats =
      static_cast<std::size_t>(max_tokens * most_adapter_ranks(limits.max_rank));
  ASSIGN_OR_RETURN(shrunk_memory_,
                   device_.allocate(num_floats * sizeof(float), "activations of adapters"));
  return {};
}

void AdapterBatch::sort_rows(std::span<const std::int32_t> start_loc, std::int32_t first,
                             std::int32_t end, HostRows& rows) const {
  rows.first_row.assign(1, 0);
  rows.rows.clear();
  rows.adapter_of_row.clear();
  for (std::size_t adapter = 0; adapter < used_.size(); ++adapter) {
    for (std::size_t seq = 0; seq < used_of_seq_.size(); ++seq) {
      if (used_of_seq_[seq] != static_cast<std::int32_t>(adapter)) continue;
      for (std::int32_t row = std::max(first, start_loc[seq]);
           row < std::min(end, start_loc[seq + 1]); ++row) {
        rows.rows.push_back(row - first);
        rows.adapter_of_row.push_back(static_cast<std::int32_t>(adapter));
      }
    }
    rows.first_row.push_back(static_cast<std::int32_t>(rows.rows.size()));
  }
}

bool AdapterBatch::send(const HostRows& rows, DeviceMemory& memory, AdapterRows& sent) {
  sent = {.adapters = weights_.data(),
          .first_row = rows.first_row.data(),
          .rows = rows.rows.data(),
          .adapter_of_row = rows.adapter_of_row.data(),
          .num_adapters = static_cast<std::int64_t>(used_.size()),
          .num_rows = static_cast<std::int64_t>(rows.rows.size())};
  if (device_.is_host()) return true;
  const std::size_t pointer_bytes = weights_.size() * sizeof(weights_.front());
  const std::size_t first_bytes = rows.first_row.size() * sizeof(std::int32_t);
  const std::size_t row_bytes = rows.rows.size() * sizeof(std::int32_t);
  const std::size_t num_bytes = pointer_bytes + first_bytes + 2 * row_bytes;
  if (memory.size() < num_bytes) {
    Result<void> idle = device_.synchronize();  // the one that goes may be in use
    auto more = device_.allocate(2 * num_bytes, "a step's adapters");
    if (!idle.ok() || !more.ok()) {
      device_.fail(idle.ok() ? more.error() : idle.error());
      return false;
    }
    memory = std::move(more).value();
  }
  std::byte* next = memory.data();
  const auto put = [&](const void* from, std::size_t size) {
    if (size > 0) device_.copy_to_device(next, from, size);
    return std::exchange(next, next + size);
  };
  sent.adapters =
      reinterpret_cast<const AdapterWeight* const*>(put(weights_.data(), pointer_bytes));
  sent.first_row = reinterpret_cast<const std::int32_t*>(put(rows.first_row.data(), first_bytes));
  sent.rows = reinterpret_cast<const std::int32_t*>(put(rows.rows.data(), row_bytes));
  sent.adapter_of_row =
      reinterpret_cast<const std::int32_t*>(put(rows.adapter_of_row.data(), row_bytes));
  return true;
}

const StepAdapters* AdapterBatch::put(std::span<const Adapter* const> adapters,
                                      std::span<const std::int32_t> query_start_loc,
                                      std::span<const std::int32_t> output_start_loc) {
  used_.clear();
  used_of_seq_.clear();
  weights_.clear();
  std::int32_t num_ranks = 0;
  for (const Adapter* const adapter : adapters) {
    if (adapter == nullptr) {
      used_of_seq_.push_back(-1);
      continue;
    }
    const auto known = std::ranges::find(used_, adapter);
    used_of_seq_.push_back(static_cast<std::int32_t>(known - used_.begin()));
    if (known != used_.end()) continue;
    used_.push_back(adapter);
    weights_.push_back(adapter->weights());
    num_ranks = std::max(num_ranks, adapter->num_ranks());
  }
  if (used_.empty()) return nullptr;
  output_start_loc_.assign(output_start_loc.begin(), output_start_loc.end());
  sort_rows(query_start_loc, 0, query_start_loc.back(), tokens_);
  sort_rows(output_start_loc, 0, output_start_loc.back(), outputs_);
  if (!send(tokens_, token_memory_, step_.tokens)) return nullptr;
  if (!send(outputs_, output_memory_, step_.outputs)) return nullptr;
  step_.type = type_;
  step_.shrunk = {reinterpret_cast<float*>(shrunk_memory_.data()), step_.tokens.num_rows,
                  num_ranks};
  CHECK(static_cast<std::size_t>(step_.shrunk.num_rows * num_ranks) * sizeof(float) <=
            shrunk_memory_.size(),
        step_.shrunk.num_rows, num_ranks);
  return &step_;
}

const StepAdapters* AdapterBatch::put_outputs(std::int32_t first, std::int32_t count) {
  if (used_.empty()) return nullptr;
  sort_rows(output_start_loc_, first, first + count, some_outputs_);
  if (some_outputs_.rows.empty()) return nullptr;
  some_ = step_;
  if (!send(some_outputs_, some_memory_, some_.outputs)) return nullptr;
  return &some_;
}

void AdapterBatch::add_embeddings(std::span<const std::int32_t> ids, std::int32_t target,
                                  float scale, Matrix out) {
  const bool is_updated = std::ranges::any_of(
      used_, [](const Adapter* adapter) { return adapter->embedding_rank() > 0; });
  if (!is_updated) return;
  const Matrix shrunk = step_.shrunk;
  shrunk_.assign(static_cast<std::size_t>(shrunk.num_rows * shrunk.num_cols), 0);
  for (std::size_t i = 0; i < tokens_.rows.size(); ++i) {
    const Adapter& adapter = *used_[static_cast<std::size_t>(tokens_.adapter_of_row[i])];
    const std::int64_t rank = adapter.embedding_rank();
    if (rank == 0) continue;
    const std::int64_t id = ids[static_cast<std::size_t>(tokens_.rows[i])];
    const float* const from = adapter.embedding().data() + id * rank;
    float* const to = shrunk_.data() + static_cast<std::int64_t>(i) * shrunk.num_cols;
    for (std::int64_t r = 0; r < rank; ++r) to[r] = from[r] * scale;
  }
  device_.copy_to_device(shrunk.data, shrunk_.data(), shrunk_.size() * sizeof(float));
  device_.ops().adapter_expand(
      device_.context(),
      {.x = shrunk, .rows = step_.tokens, .target = target, .type = type_, .out = out});
}

}  // namespace troupe
