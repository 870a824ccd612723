#pragma once
// Mixtures of experts: of many gated MLPs each token goes through a few.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/models/layers.hpp"

namespace troupe {

struct ExpertsOptions {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  ///< of one expert
  std::int64_t num_experts = 0;
  std::int64_t num_chosen = 0;  ///< for each token
  /// A token's weights are the softmax among its experts; else of all experts, taken at these.
  bool normalises_weights = false;
  std::int32_t canonical_shards = 1;
};

/// out[t] = sum over the chosen experts e of p[t, e] expert_e(x[t]), p = softmax(router(x[t])) in
/// float32 (arXiv 1701.06538; with top-k routing as in Mixtral, arXiv 2401.04088).
///
/// All rows of an expert are one product, and its weights are not read if it has none. On the CPU
/// the host computes one expert after the other; on devices, where it cannot read which rows are
/// whose, one operation computes all of them. A token's
/// sum is over the experts in the order of their numbers, and each of its terms is the sum over all
/// ranks first: it has the same bits in every batch and with any number of ranks.
class Experts final : public Mixer {
 public:
  /// The router is the matrix `name`.gate, expert e has `name`.experts.e.{names}.
  Experts(WeightLoader& loader, const std::string& name, const ExpertsOptions& options,
          const MlpNames& names);
  /// x and out: [num_queries, hidden_size].
  void forward(const LayerStep& step, ConstMatrix x, Matrix out) const override;
  [[nodiscard]] MixerMemory memory(Device& device,
                                   const MixerLimits& limits) const noexcept override;

 private:
  /// The tokens of each expert, and their weights, one expert behind the other.
  struct Routes {
    std::span<std::int32_t> first;  ///< [num_experts + 1]
    std::span<std::int32_t> tokens;
    std::span<float> weights;
  };
  /// Errors (recorded): what the device cannot compute.
  void take_addresses(WeightLoader& loader, const std::string& name);
  void forward_on_host(const LayerStep& step, ConstMatrix x, Matrix out) const;
  void forward_on_device(const LayerStep& step, ConstMatrix x, Matrix out) const;
  [[nodiscard]] MixerMemory memory_on_device(const OpTable& ops,
                                             std::int64_t max_num_tokens) const noexcept;
  /// Takes what it returns from `scratch`.
  [[nodiscard]] Routes route(const LayerStep& step, ConstMatrix x, Scratch& scratch) const;
  /// The experts of one token with the largest logits, the largest first, and their weights.
  void choose(std::span<const float> logits, std::span<std::int32_t> experts,
              std::span<float> weights) const;
  /// Rows of experts' results that are kept before they are added up.
  [[nodiscard]] std::int64_t num_result_rows(std::int64_t num_tokens) const noexcept;

  ExpertsOptions options_;
  Linear router_;
  std::vector<std::unique_ptr<const GatedMlp>> experts_;
  // Addresses of the experts' weights; empty on the CPU.
  DeviceArray<const std::byte*> gate_ups_;
  DeviceArray<const std::byte*> downs_;
};

/// Beside the mixture an expert that every token goes through: experts(x) + sigmoid(gate(x))
/// shared(x) (Qwen1.5-MoE, DeepSeekMoE: arXiv 2401.06066).
class ExpertsWithShared final : public Mixer {
 public:
  /// The shared expert is `name`.shared_expert, its gate the matrix of one row
  /// `name`.shared_expert_gate.
  ExpertsWithShared(WeightLoader& loader, const std::string& name, const ExpertsOptions& options,
                    const MlpNames& names, std::int64_t shared_size);
  /// x and out: [num_queries, hidden_size].
  void forward(const LayerStep& step, ConstMatrix x, Matrix out) const override;
  [[nodiscard]] MixerMemory memory(Device& device,
                                   const MixerLimits& limits) const noexcept override;

 private:
  std::int64_t hidden_size_;
  Experts experts_;
  GatedMlp shared_;
  Linear gate_;
};

}  // namespace troupe
