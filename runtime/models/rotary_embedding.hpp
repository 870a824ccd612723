#pragma once
// Rotary position embedding (RoPE, arXiv 2104.09864): the tables that the kernel rotates by.

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/ops.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/model_config.hpp"

namespace troupe {

/// Owns cos and sin of every position's angles: [num_positions, rotary_dim / 2] f32. Frequencies
/// and angles are rounded to f32 as the models' reference implementation does. kLongRope takes its
/// divisors by num_positions.
class RotaryEmbedding {
 public:
  static constexpr std::int64_t kMaxBytes = std::int64_t{2} << 30;  ///< of cos and sin together

  /// Whether the tables keep to kMaxBytes: what config.json says may be anything. Errors:
  /// kInvalidArgument, naming max_model_len, what it would take and the most positions.
  static Result<void> check_size(const RopeConfig& config, std::int64_t head_dim,
                                 std::int64_t num_positions);
  /// Pre: check_size allows it.
  RotaryEmbedding(const RopeConfig& config, std::int64_t head_dim, std::int64_t num_positions);

  [[nodiscard]] const std::vector<float>& cos() const& noexcept { return cos_; }
  [[nodiscard]] const std::vector<float>& sin() const& noexcept { return sin_; }
  [[nodiscard]] std::vector<float> cos() && noexcept { return std::move(cos_); }
  [[nodiscard]] std::vector<float> sin() && noexcept { return std::move(sin_); }
  [[nodiscard]] std::int64_t rotary_dim() const noexcept { return rotary_dim_; }

 private:
  std::int64_t rotary_dim_ = 0;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

/// The tables of a RotaryEmbedding where kernels read them.
struct RopeTables {
  std::int64_t rotary_dim = 0;
  RopeStyle style = RopeStyle::kNeox;
  DeviceArray<float> cos;
  DeviceArray<float> sin;
};

}  // namespace troupe
