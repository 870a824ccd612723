#pragma once
// Keys and values that are known from elsewhere, in a forward pass that computes a part of its
// tokens only (CacheBlend, arXiv 2405.16444).

#include <cstdint>
#include <span>

#include "kernels/tensor.hpp"

namespace troupe {

class Communicator;
struct ForwardBatch;

/// Says which tokens of a batch the layers compute, and puts keys and values of the others into the
/// cache. A model calls it on each rank, in this order:
///
///   begin, of a stage that is not the first one follow,
///   then, for each layer of the rank in ascending order:
///     selects_at; if so, take, of all current tokens, and select
///     put, take
///
/// The current tokens are those of the batch, until some are selected. They are named by their
/// indices in the batch of begin(), which are ascending.
///
/// Keys are exchanged as their layer projects them: without the norm of each head, and not rotated.
/// So they depend on no position, and go to any by the same operation as keys that were computed
/// there, to the same bits.
class KvBlend {
 public:
  /// Keys and values that no token of the batch computes in a layer, where kernels read them.
  struct Rows {
    ConstHeads k;
    ConstHeads v;
    const std::int32_t* positions = nullptr;  ///< [k.num_tokens]
    const std::int64_t* slots = nullptr;      ///< [k.num_tokens]
  };

  virtual ~KvBlend() = default;
  /// Whether any of the functions below is to be called in this step: the same on all ranks.
  [[nodiscard]] virtual bool is_active() const noexcept = 0;
  /// Pre: the batch stays until the forward pass ends.
  virtual void begin(const ForwardBatch& batch) = 0;
  /// Whether tokens are selected by the keys of this layer: the same on all ranks.
  [[nodiscard]] virtual bool selects_at(std::int32_t layer) const noexcept = 0;
  /// The layer's keys and values of the current tokens, where kernels read them. Valid during the
  /// call. norms_keys: those of each head are to be normed.
  virtual void take(std::int32_t layer, ConstHeads k, ConstHeads v, bool norms_keys) = 0;
  /// The tokens that this layer and those behind it compute: some of the current ones, of each
  /// sequence at least its outputs and its last token. The same on all ranks of the stage, which
  /// call it together. Valid until the next step.
  [[nodiscard]] virtual std::span<const std::int32_t> select(std::int32_t layer,
                                                             Communicator* peers) = 0;
  /// An earlier stage has selected these.
  virtual void follow(std::span<const std::int32_t> tokens) = 0;
  /// What the layer's cache is to have of tokens that are not current any more, in so many heads;
  /// null: nothing. Valid until the next call.
  [[nodiscard]] virtual const Rows* put(std::int32_t layer, std::int64_t num_heads,
                                        std::int64_t head_dim) = 0;
};

}  // namespace troupe
