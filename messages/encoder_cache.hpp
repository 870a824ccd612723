#pragma once
// The cache of encoder outputs (images): the messages between Scheduler and EncoderCacheManager.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "messages/ids.hpp"
#include "messages/reflect.hpp"
#include "messages/request.hpp"

namespace troupe {

enum class EncoderCacheCommandKind : std::uint8_t {
  kAllocate,  ///< item `value` is encoded in this step (or already cached): the request references
              ///< it
  kFreeComputed,  ///< drop the references to items that end at or before token `value`
  kFreeAll,       ///< drop all references; the request stays known
  kForget,        ///< drop all references and forget the request
  kReset,         ///< drop everything
};

struct EncoderCacheCommand {
  EncoderCacheCommandKind kind{};
  RequestId id{};
  std::int32_t value = 0;
  bool operator==(const EncoderCacheCommand&) const = default;
};
TROUPE_MESSAGE(EncoderCacheCommand, kind, id, value)

/// The items of a request, in the order of their offsets; sent again, they replace the old ones.
struct EncoderCacheRequest {
  RequestId id{};
  std::vector<MultiModalFeature> items;  ///< without data
  bool operator==(const EncoderCacheRequest&) const = default;
};
TROUPE_MESSAGE(EncoderCacheRequest, id, items)

/// One-way; sent with the next query.
struct EncoderCacheUpdates {
  std::vector<EncoderCacheRequest> requests;
  std::vector<EncoderCacheCommand> commands;
  [[nodiscard]] bool empty() const noexcept { return requests.empty() && commands.empty(); }
  bool operator==(const EncoderCacheUpdates&) const = default;
};
TROUPE_MESSAGE(EncoderCacheUpdates, requests, commands)

/// Finds the items to encode so that tokens [num_computed_tokens, + num_new_tokens + shift) can be
/// computed.
struct PlanEncoderInputs {
  EncoderCacheUpdates updates;
  RequestId id{};
  std::int32_t num_computed_tokens = 0;
  std::int32_t num_new_tokens = 0;
  std::int32_t shift = 0;
  std::int32_t max_new_tokens = 0;  ///< upper limit of num_new_tokens
  std::int32_t budget = 0;          ///< remaining encoder budget of this step, in embeddings
  /// Items whose outputs the EC connector has: they are loaded, and do not use the budget.
  std::vector<std::int32_t> external_items;
  /// Items for which the connector has not answered yet, or that are encoded ahead.
  std::vector<std::int32_t> pending_items;
  bool operator==(const PlanEncoderInputs&) const = default;
};
TROUPE_MESSAGE(PlanEncoderInputs, updates, id, num_computed_tokens, num_new_tokens, shift,
               max_new_tokens, budget, external_items, pending_items)

struct EncoderInputsPlanned {
  std::int32_t num_new_tokens = 0;       ///< fewer than requested where an item does not fit, more
                                         ///< where that keeps one whole
  std::vector<std::int32_t> items;       ///< to encode
  std::vector<std::int32_t> duplicates;  ///< same content as one of `items` or `external_items`
  std::int32_t num_embeds = 0;           ///< of `items`
  std::int32_t num_cached = 0;           ///< items whose output was cached
  std::vector<std::int32_t> external_items;  ///< to load
  /// One of PlanEncoderInputs::pending_items, before which it ends; -1: none.
  std::int32_t pending_item = -1;
  [[nodiscard]] bool is_pending() const noexcept { return pending_item >= 0; }
  bool mismatch = false;  ///< an identifier occurs with items of different sizes
  bool operator==(const EncoderInputsPlanned&) const = default;
};
TROUPE_MESSAGE(EncoderInputsPlanned, num_new_tokens, items, duplicates, num_embeds, num_cached,
               mismatch, external_items, pending_item)

/// Finds the outputs evicted since the last query (and not cached again).
struct TakeFreedEncoderOutputs {
  EncoderCacheUpdates updates;
  bool operator==(const TakeFreedEncoderOutputs&) const = default;
};
TROUPE_MESSAGE(TakeFreedEncoderOutputs, updates)

struct FreedEncoderOutputs {
  std::vector<std::string> identifiers;
  bool operator==(const FreedEncoderOutputs&) const = default;
};
TROUPE_MESSAGE(FreedEncoderOutputs, identifiers)

}  // namespace troupe
