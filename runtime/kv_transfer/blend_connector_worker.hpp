#pragma once
// A worker's side of the BlendConnector.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "messages/worker.hpp"
#include "runtime/kv_transfer/blend_config.hpp"
#include "runtime/kv_transfer/blend_ops.hpp"
#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/kept_piece.hpp"
#include "runtime/kv_transfer/kv_connector_worker.hpp"
#include "runtime/kv_transfer/piece_files.hpp"
#include "runtime/kv_transfer/store_key.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/kv_blend.hpp"

namespace troupe {

/// Owns the pieces of one rank. In a step it hands those of the step's requests to the layers, has
/// the ranks of the stage measure together which tokens differ most from what is kept of them, and
/// keeps what the Scheduler's side says. Tokens of which nothing is kept are always computed, and
/// of each request in a batch the last one.
class BlendConnectorWorker final : public KVConnectorWorker, public KvBlend {
 public:
  BlendConnectorWorker(BlendConfig config, const KVConnectorWorkerContext& context);

  Result<void> register_kv_caches(const KVCacheMemory& memory) override;
  void start_step() override;
  void start_load_kv(const std::string& metadata) override;
  void wait_for_save() override;
  [[nodiscard]] KVConnectorOutput get_finished() override;
  [[nodiscard]] KvBlend* kv_blend() noexcept override { return this; }

  [[nodiscard]] bool is_active() const noexcept override {
    return !blends_.empty() || !saves_.empty();
  }
  void begin(const ForwardBatch& batch) override;
  [[nodiscard]] bool selects_at(std::int32_t layer) const noexcept override;
  void take(std::int32_t layer, ConstHeads k, ConstHeads v, bool norms_keys) override;
  [[nodiscard]] std::span<const std::int32_t> select(std::int32_t layer,
                                                     Communicator* peers) override;
  void follow(std::span<const std::int32_t> tokens) override;
  [[nodiscard]] const Rows* put(std::int32_t layer, std::int64_t num_heads,
                                std::int64_t head_dim) override;

  [[nodiscard]] std::size_t num_pieces() const noexcept { return pieces_.size(); }
  /// Of the last step: tokens that were taken from pieces.
  [[nodiscard]] std::size_t num_left_out() const noexcept { return left_out_.size(); }

 private:
  struct Blend {
    std::vector<std::pair<PiecePart, std::shared_ptr<const KeptPiece>>> parts;
    std::vector<double> ratios;
    std::vector<double> thresholds;
    std::int32_t num_tokens = 0;  ///< candidates
  };
  struct Save {
    PiecePart part;
    std::shared_ptr<KeptPiece> piece;
  };
  /// Of a file: to be written, or, without a piece, removed.
  struct FileOp {
    StoreKey key;
    std::shared_ptr<const KeptPiece> piece;
  };
  /// A token of the batch that may be left out.
  struct Candidate {
    std::int32_t token = 0;
    std::size_t blend = 0;
    const KeptPiece* piece = nullptr;
    std::int32_t offset = 0;  ///< in the piece
  };
  /// Squared distance of a key from the kept one, and squared length; of one head.
  struct Deviation {
    float distance = 0;
    float length = 0;
  };

  void measure(std::int32_t layer, ConstHeads k, bool norms_keys);
  void leave_out(std::span<const std::int32_t> kept);
  /// The row of a token in the matrices of the current ones.
  [[nodiscard]] std::int32_t row_of(std::int32_t token) const;
  /// Where the host reads them.
  [[nodiscard]] ConstHeads on_host(ConstHeads heads, std::vector<float>& copy) const;
  /// Where kernels read them.
  template <class T>
  const T* on_device(const std::vector<T>& values, DeviceMemory& memory) const;

  BlendConfig config_;
  std::string model_identity_;
  ParallelConfig parallel_;
  Device* device_ = nullptr;
  bool is_narrow_ = false;
  std::unordered_map<StoreKey, std::shared_ptr<KeptPiece>, StoreKeyHash> pieces_;

  std::unique_ptr<PieceFiles> files_;  // null: there are none

  // Of the step.
  std::vector<Blend> blends_;
  std::vector<Save> saves_;
  std::vector<FileOp> file_ops_;
  const ForwardBatch* batch_ = nullptr;
  std::int32_t last_selection_ = 0;      // the layer
  std::vector<std::int32_t> current_;    // empty: all tokens
  std::vector<Candidate> candidates_;    // that are current, ascending
  std::vector<Candidate> left_out_;      // ascending
  std::vector<Deviation> deviations_;    // [heads of the rank, candidates_]
  std::vector<std::int32_t> positions_;  // of left_out_
  std::vector<std::int64_t> slots_;      // the same
  std::vector<float> rows_;              // [left_out_, k and v]
  Rows put_;
  std::vector<float> k_copy_;
  std::vector<float> v_copy_;
  DeviceMemory device_positions_;
  DeviceMemory device_slots_;
  DeviceMemory device_rows_;
};

}  // namespace troupe
