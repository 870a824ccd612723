// What is asked of rows of logits.

#include <math.h>

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/math.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {
namespace {

/// The largest value; NaN counts only if there is nothing else.
float row_max(const float* x, std::int64_t n) {
  Vec largest = broadcast(-kInfinity);
  std::int64_t i = 0;
  // A NaN in the first operand of max gives the second: the running maximum.
  for (; i + kLanes <= n; i += kLanes) largest = max(load(x + i), largest);
  float result = max_of_lanes(largest);
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

/// sum(exp(x - shift)). Vocabularies are long: the sums of stretches of 1024 are added as doubles.
double sum_of_exp(const float* x, std::int64_t n, float shift) {
  constexpr std::int64_t kStretch = 1024;
  const Vec offset = broadcast(shift);
  double total = 0.0;
  for (std::int64_t first = 0; first < n; first += kStretch) {
    const std::int64_t end = min_of(n, first + kStretch);
    Vec sum = zero();
    std::int64_t i = first;
    for (; i + kLanes <= end; i += kLanes) sum = sum + exp(load(x + i) - offset);
    total += static_cast<double>(sum_of_lanes(sum));
    if (i < end) {
      alignas(64) float lanes[kLanes];
      store(lanes, exp(load_first(x + i, end - i) - offset));
      for (std::int64_t lane = 0; lane < end - i; ++lane) total += static_cast<double>(lanes[lane]);
    }
  }
  return total;
}

}  // namespace

void log_softmax(const OpContext& context, const LogSoftmaxArgs& args) noexcept {
  const std::int64_t n = args.x.num_cols;
  for_each_row(context, args.x.num_rows, n, [&](std::int64_t row) {
    const float* x = args.x.row(row);
    float* out = args.out.row(row);
    const float largest = row_max(x, n);
    // x - largest first: it is exact near the top, where precision is asked for.
    const Vec shift = broadcast(largest);
    const Vec log_sum = broadcast(static_cast<float>(::log(sum_of_exp(x, n, largest))));
    for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(out + i, (load_lanes(x + i) - shift) - log_sum);
    });
  });
}

void token_ranks(const OpContext& context, const TokenRanksArgs& args) noexcept {
  const std::int64_t n = args.x.num_cols;
  for_each_row(context, args.x.num_rows, n, [&](std::int64_t row) {
    const float* x = args.x.row(row);
    const float value = x[args.tokens[row]];
    std::int64_t rank = 0;
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
      rank += count(greater_equal(load(x + i), broadcast(value)));
    for (; i < n; ++i) rank += x[i] >= value;
    args.ranks[row] = static_cast<std::int32_t>(rank);
  });
}

void argmax(const OpContext& context, const ArgmaxArgs& args) noexcept {
  const std::int64_t n = args.x.num_cols;
  for_each_row(context, args.x.num_rows, n, [&](std::int64_t row) {
    const float* x = args.x.row(row);
    const float largest = row_max(x, n);
    args.indices[row] = -1;
    for (std::int64_t i = 0; i < n; ++i) {
      if (x[i] == largest) {
        args.indices[row] = static_cast<std::int32_t>(i);
        break;
      }
    }
  });
}

}  // namespace troupe::TROUPE_ISA
