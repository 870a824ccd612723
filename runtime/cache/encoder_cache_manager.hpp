#pragma once
// The EncoderCacheManager: tracks which encoder outputs (of images) the workers hold, and their
// users.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "messages/encoder_cache.hpp"
#include "messages/ids.hpp"

namespace troupe {

/// Eviction order of unreferenced outputs: by the time of release, or by the time of the last
/// reference.
enum class EncoderCacheEviction : std::uint8_t { kFifo, kLru };

struct EncoderCacheSettings {
  std::int32_t capacity = 0;  ///< embeddings
  bool split_items = true;    ///< a step may compute a part of an item's tokens
  /// The embeddings of an item see each other: a step that computes one of a run of them computes
  /// the rest of the run.
  bool whole_runs = false;
  EncoderCacheEviction eviction = EncoderCacheEviction::kFifo;
  /// The encoder's output is written to the cross-attention cache in the step that encodes it: it
  /// is not shared, and is freed one step later.
  bool encoder_decoder = false;
};

/// Owns the accounting of the encoder cache, in embeddings. An output is shared by all items with
/// the same identifier. An unreferenced output stays until its space is needed.
///
/// Invariants: free + sizes of all cached outputs = capacity; freeable = free + sizes of
/// unreferenced ones. In an encoder-decoder model nothing is cached: free + sizes of all referenced
/// items = capacity.
class EncoderCacheManager {
 public:
  explicit EncoderCacheManager(const EncoderCacheSettings& settings);

  // ---- messages ----
  void apply(const EncoderCacheUpdates& updates);
  [[nodiscard]] EncoderInputsPlanned plan(const PlanEncoderInputs& question);
  [[nodiscard]] FreedEncoderOutputs take_freed(const TakeFreedEncoderOutputs& question);

  // ---- operations ----
  void set_request(RequestId id, std::vector<MultiModalFeature> items);
  /// Size of the cached output with the item's identifier in embeddings, or -1.
  [[nodiscard]] std::int32_t cached_embeds(RequestId id, std::int32_t item) const;
  /// Adds a reference if the output is cached.
  bool check_and_reference(RequestId id, std::int32_t item);
  /// Whether the item fits besides `num_planned` embeddings, possibly after evictions, and in the
  /// budget.
  bool can_allocate(RequestId id, std::int32_t item, std::int32_t budget, std::int32_t num_planned);
  /// Pre: can_allocate returned true.
  void allocate(RequestId id, std::int32_t item);
  /// Items referenced by the request.
  [[nodiscard]] std::set<std::int32_t> referenced_items(RequestId id) const;
  void free_input(RequestId id, std::int32_t item);
  void free(RequestId id);
  [[nodiscard]] std::vector<std::string> take_freed_identifiers();
  void reset();

  struct Output {
    std::int32_t num_embeds = 0;
    std::set<RequestId> users;
    std::uint64_t order = 0;  ///< among the evictable ones
  };
  [[nodiscard]] std::int32_t num_free() const noexcept { return num_free_; }
  [[nodiscard]] std::int32_t num_freeable() const noexcept { return num_freeable_; }
  [[nodiscard]] const std::unordered_map<std::string, Output>& cached() const noexcept {
    return cached_;
  }
  /// Unreferenced outputs in the order of eviction.
  [[nodiscard]] std::vector<std::string> evictable() const;
  [[nodiscard]] const std::vector<std::string>& freed() const noexcept { return freed_; }

 private:
  struct Request {
    std::vector<MultiModalFeature> items;
    std::set<std::int32_t> referenced;
  };
  [[nodiscard]] const MultiModalFeature& item_of(RequestId id, std::int32_t item) const;

  void take_reference(Output& output, RequestId id, std::int32_t item);
  /// num_new_tokens, or fewer or more of them (at most max_new_tokens), so that no run is cut.
  [[nodiscard]] static std::int32_t without_cut(const std::vector<MultiModalFeature>& items,
                                                const PlanEncoderInputs& question);

  EncoderCacheSettings settings_;
  std::int32_t num_free_;
  std::int32_t num_freeable_;
  std::unordered_map<std::string, Output> cached_;
  std::map<std::uint64_t, std::string> evictable_;  ///< by Output::order
  std::uint64_t clock_ = 0;                         ///< counts releases and uses
  std::vector<std::string> freed_;                  ///< evicted since the last take
  std::vector<std::string> encoded_;                ///< encoder_decoder: since the last take
  std::unordered_map<RequestId, Request> requests_;
};

}  // namespace troupe
