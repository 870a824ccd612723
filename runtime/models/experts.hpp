#pragma once
// Mixtures of experts: of many gated MLPs each token goes through a few.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/models/layers.hpp"

namespace troupe {

struct ExpertsOptions;
/// Where a checkpoint keeps expert `expert` of the mixture `name`.
using ExpertParts = MlpParts(const WeightLoader& loader, const std::string& name,
                             const ExpertsOptions& options, std::int64_t expert);

/// Each matrix as a tensor of its own: `name`.experts.e.{expert_names}.
ExpertParts named_expert_parts;

/// How transformers keeps the experts' matrices in one parameter, which adapters may name:
/// `name`.experts.gate_up_proj and `name`.experts.down_proj.
enum class ExpertStack : std::uint8_t {
  kHalves,       ///< of each expert: the rows of the gate, then those of `up`
  kInterleaved,  ///< they take turns
  kTransposed,   ///< as kHalves, but PEFT takes rows for columns
};

struct ExpertsOptions {
  std::int64_t num_experts = 0;
  ExpertRouting routing;                  ///< choice_bias is loaded
  MlpOptions expert;                      ///< of one, but is_whole
  std::string_view router_name = "gate";  ///< the matrix `name`.{router_name}
  bool router_bias = false;
  std::string_view choice_bias_name = {};  ///< the vector `name`.{choice_bias_name}; empty: none
  MlpNames expert_names = {};
  ExpertParts* expert_parts = named_expert_parts;
  ExpertStack stack = ExpertStack::kHalves;
};

/// out[t] = sum over the chosen experts e of p[t, e] expert_e(x[t]), p and the choice by
/// ExpertRouting from router(x[t]) in float32 (arXiv 1701.06538; with top-k routing as in Mixtral,
/// arXiv 2401.04088).
///
/// All rows of an expert are one product, and its weights are not read if it has none. On the CPU
/// the host computes one expert after the other; on devices, where it cannot read which rows are
/// whose, one operation computes all of them. A token's
/// sum is over the experts in the order of their numbers, and each of its terms is the sum over all
/// ranks first: it has the same bits in every batch and with any number of ranks. With expert
/// parallelism a rank has some of the experts as a whole, and zeros for what the others give.
///
/// Adapters update experts on the CPU alone: the rows of an expert are sorted by adapter, as all
/// rows of other matrices are, and the sum over ranks comes before down_proj's update.
class Experts final : public Mixer {
 public:
  Experts(WeightLoader& loader, const std::string& name, const ExpertsOptions& options);
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
  /// What one step's adapters do to experts.
  struct Updates {
    std::span<std::int32_t> adapter_of_token;  ///< in AdapterRows::adapters; -1: none
    // Of the expert at hand:
    std::span<std::int32_t> first_row;
    std::span<std::int32_t> rows;
    std::span<std::int32_t> adapter_of_row;
    Matrix gate_up;
    Matrix hidden;
    Matrix shrunk;  ///< of down_proj, for all pairs whose results are kept
  };
  struct AdaptedExpert {
    AdaptedMatrix gate_up;
    AdaptedMatrix down;
  };
  /// Says that adapters may update an expert.
  void adapt(WeightLoader& loader, const std::string& name, std::int64_t expert);
  /// Nothing: no adapter of the step updates an expert. Takes what it returns from `scratch`.
  [[nodiscard]] std::optional<Updates> take_updates(const LayerStep& step, std::int64_t num_tokens,
                                                    Scratch& scratch) const;
  /// The rows of the expert that have an adapter, sorted by it; none if no adapter updates it.
  [[nodiscard]] AdapterRows adapted_rows(const LayerStep& step, const Routes& routes,
                                         std::size_t expert, const Updates& updates) const;
  /// GatedMlp::multiply with updates. shrunk: the rows of Updates::shrunk for this expert.
  void multiply_updated(const LayerStep& step, const AdapterRows& rows, const Updates& updates,
                        std::size_t expert, ConstMatrix x, Matrix shrunk, Matrix out) const;
  [[nodiscard]] std::int64_t num_pairs(std::int64_t num_tokens) const noexcept {
    return num_tokens * options_.routing.num_chosen;
  }
  /// Null: there is none.
  [[nodiscard]] const float* down_bias(std::size_t expert) const noexcept {
    return experts_[expert] != nullptr ? experts_[expert]->down_bias()
                                       : other_biases_[expert].data();
  }
  /// One that this rank has.
  [[nodiscard]] const GatedMlp& any_expert() const noexcept {
    return *experts_[static_cast<std::size_t>(mine_.begin)];
  }
  /// Pairs' results of the experts [begin, end), summed over the ranks, with their biases.
  void finish_results(const LayerStep& step, const Routes& routes, const Updates* updates,
                      std::size_t begin, std::size_t end, Matrix results) const;
  /// Errors (recorded): what the device cannot compute.
  void take_addresses(WeightLoader& loader, const std::string& name);
  void forward_on_host(const LayerStep& step, ConstMatrix x, Matrix out) const;
  void forward_on_device(const LayerStep& step, ConstMatrix x, Matrix out) const;
  [[nodiscard]] MixerMemory memory_on_device(const OpTable& ops,
                                             std::int64_t max_num_tokens) const noexcept;
  /// Takes what it returns from `scratch`.
  [[nodiscard]] Routes route(const LayerStep& step, ConstMatrix x, Scratch& scratch) const;
  /// Rows of experts' results that are kept before they are added up.
  [[nodiscard]] std::int64_t num_result_rows(std::int64_t num_tokens) const noexcept;

  ExpertsOptions options_;
  Slice mine_;      ///< experts of this rank; of the others there is nothing in experts_
  bool has_parts_;  ///< of each expert, of which other ranks have the rest
  Linear router_;
  AdaptedMatrix adapted_router_;
  std::vector<AdaptedExpert> adapted_;            ///< empty: adapters do not update experts
  DeviceArray<float> choice_bias_;                ///< empty: none
  std::vector<DeviceArray<float>> other_biases_;  ///< of down_proj, of experts of other ranks
  std::vector<std::unique_ptr<const GatedMlp>> experts_;
  // Addresses of the experts' weights; empty on the CPU.
  DeviceArray<const std::byte*> gate_ups_;
  DeviceArray<const std::byte*> downs_;
  // Of their biases; empty too where there are none.
  DeviceArray<const float*> gate_up_biases_;
  DeviceArray<const float*> down_biases_;
};

struct SharedExpertOptions {
  std::int64_t intermediate_size = 0;
  std::string_view name = "shared_expert";  ///< `mixture`.{name}
  std::string_view gate_name = {};          ///< a matrix of one row; empty: there is none
};

/// Beside the mixture an expert that every token goes through: experts(x) + sigmoid(gate(x))
/// shared(x) (Qwen1.5-MoE, DeepSeekMoE: arXiv 2401.06066), or the same without the gate.
class ExpertsWithShared final : public Mixer {
 public:
  ExpertsWithShared(WeightLoader& loader, const std::string& name, const ExpertsOptions& options,
                    const SharedExpertOptions& shared);
  /// x and out: [num_queries, hidden_size].
  void forward(const LayerStep& step, ConstMatrix x, Matrix out) const override;
  [[nodiscard]] MixerMemory memory(Device& device,
                                   const MixerLimits& limits) const noexcept override;

 private:
  std::int64_t hidden_size_;
  Experts experts_;
  GatedMlp shared_;
  std::optional<Linear> gate_;
  AdaptedMatrix adapted_gate_;
};

}  // namespace troupe
