#pragma once
// The EncoderCacheManager: tracks which encoder outputs (of images) the workers hold, and their
// users.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "messages/encoder_cache.hpp"
#include "messages/ids.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// vLLM's names.
inline constexpr std::string_view kEncoderCacheManager = "EncoderCacheManager";
inline constexpr std::string_view kEncoderDecoderCacheManager = "EncoderDecoderCacheManager";

struct EncoderCacheSettings {
  std::int32_t capacity = 0;  ///< embeddings
  bool split_items = true;    ///< a step may compute a part of an item's tokens
  /// The embeddings of an item see each other: a step that computes one of a run of them computes
  /// the rest of the run.
  bool whole_runs = false;
  std::string manager{kEncoderCacheManager};  ///< the name of its kind
};

/// Owns the accounting of the encoder cache, in embeddings. An output is shared by all items with
/// the same identifier. An unreferenced output stays until its space is needed; what was released
/// first is evicted first. Other kinds derive from it (encoder_cache_manager_kinds).
///
/// Invariants: free + sizes of all cached outputs = capacity; freeable = free + sizes of
/// unreferenced ones.
class EncoderCacheManager {
 public:
  explicit EncoderCacheManager(const EncoderCacheSettings& settings);
  EncoderCacheManager(const EncoderCacheManager&) = delete;
  EncoderCacheManager& operator=(const EncoderCacheManager&) = delete;
  virtual ~EncoderCacheManager() = default;

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
  virtual void allocate(RequestId id, std::int32_t item);
  /// Items referenced by the request.
  [[nodiscard]] std::set<std::int32_t> referenced_items(RequestId id) const;
  virtual void free_input(RequestId id, std::int32_t item);
  void free(RequestId id);
  [[nodiscard]] virtual std::vector<std::string> take_freed_identifiers();
  virtual void reset();

  /// The lowest is evicted first.
  using EvictionOrder = std::pair<std::uint64_t, std::uint64_t>;
  struct Output {
    std::int32_t num_embeds = 0;
    std::set<RequestId> users;
    std::uint64_t num_uses = 0;  ///< by one request each
    std::uint64_t last_use = 0;  ///< by the clock
    EvictionOrder order;         ///< while it has no users
  };
  [[nodiscard]] std::int32_t num_free() const noexcept { return num_free_; }
  [[nodiscard]] std::int32_t num_freeable() const noexcept { return num_freeable_; }
  [[nodiscard]] const std::unordered_map<std::string, Output>& cached() const noexcept {
    return cached_;
  }
  /// Unreferenced outputs in the order of eviction.
  [[nodiscard]] std::vector<std::string> evictable() const;
  [[nodiscard]] const std::vector<std::string>& freed() const noexcept { return freed_; }

 protected:
  struct Request {
    std::vector<MultiModalFeature> items;
    std::set<std::int32_t> referenced;
  };
  [[nodiscard]] const MultiModalFeature& item_of(RequestId id, std::int32_t item) const;
  [[nodiscard]] Request& request(RequestId id) { return requests_[id]; }
  void give_back(std::int32_t num_embeds);
  void take(std::int32_t num_embeds);

  /// Of an output that has just lost its last user, at the time `now`. The orders of two outputs
  /// must differ: those that begin with different times do, and those with the same first number
  /// and different times.
  [[nodiscard]] virtual EvictionOrder eviction_order(const Output& output, std::uint64_t now) const;
  virtual void on_evicted(const Output& output);
  /// Whether items with the same identifier have one output.
  [[nodiscard]] virtual bool shares_outputs() const noexcept { return true; }
  /// Whether a step that begins at this token may encode.
  [[nodiscard]] virtual bool encodes_at(std::int32_t num_computed_tokens) const noexcept;
  /// The token after which an item's output is not needed.
  [[nodiscard]] virtual std::int32_t end_of_need(const MultiModalFeature& item) const noexcept;

 private:
  void take_reference(Output& output, RequestId id, std::int32_t item);
  /// num_new_tokens, or fewer or more of them (at most max_new_tokens), so that no run is cut.
  [[nodiscard]] static std::int32_t without_cut(const std::vector<MultiModalFeature>& items,
                                                const PlanEncoderInputs& question);

  EncoderCacheSettings settings_;
  std::int32_t num_free_;
  std::int32_t num_freeable_;
  std::unordered_map<std::string, Output> cached_;
  std::map<EvictionOrder, std::string> evictable_;
  std::uint64_t clock_ = 0;         ///< counts releases and uses
  std::vector<std::string> freed_;  ///< evicted since the last take
  std::unordered_map<RequestId, Request> requests_;
};

struct EncoderCacheManagerKind {
  std::string_view name;
  std::unique_ptr<EncoderCacheManager> (*make)(const EncoderCacheSettings& settings);
};
[[nodiscard]] std::span<const EncoderCacheManagerKind> encoder_cache_manager_kinds() noexcept;

/// The kind that a model has: the one that is configured, or without a name (empty) vLLM's.
/// Encoder-decoder models have a kind of their own, since their outputs are written to the
/// cross-attention cache. Errors: kInvalidArgument, an unknown name (lists the known ones), or one
/// that is not for such a model.
[[nodiscard]] Result<std::string> choose_encoder_cache_manager(std::string_view configured,
                                                               bool is_encoder_decoder);
/// Pre: settings.manager is the name of a kind.
[[nodiscard]] std::unique_ptr<EncoderCacheManager> make_encoder_cache_manager(
    const EncoderCacheSettings& settings);

// The other kinds, each in a file of its own.
std::unique_ptr<EncoderCacheManager> make_lru_encoder_cache_manager(
    const EncoderCacheSettings& settings);
std::unique_ptr<EncoderCacheManager> make_lfu_encoder_cache_manager(
    const EncoderCacheSettings& settings);
std::unique_ptr<EncoderCacheManager> make_encoder_decoder_cache_manager(
    const EncoderCacheSettings& settings);

}  // namespace troupe
