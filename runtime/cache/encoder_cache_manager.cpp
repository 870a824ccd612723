#include "runtime/cache/encoder_cache_manager.hpp"

#include <algorithm>
#include <limits>

#include "messages/encoder_input.hpp"
#include "runtime/base/check.hpp"

namespace troupe {

EncoderCacheManager::EncoderCacheManager(const EncoderCacheSettings& settings)
    : settings_(settings), num_free_(settings.capacity), num_freeable_(settings.capacity) {}

void EncoderCacheManager::set_request(RequestId id, std::vector<MultiModalFeature> items) {
  requests_[id].items = std::move(items);
}

const MultiModalFeature& EncoderCacheManager::item_of(RequestId id, std::int32_t item) const {
  const auto known = requests_.find(id);
  CHECK(known != requests_.end(), value(id));
  return known->second.items.at(static_cast<std::size_t>(item));
}

std::int32_t EncoderCacheManager::cached_embeds(RequestId id, std::int32_t item) const {
  const auto found = cached_.find(item_of(id, item).identifier);
  return found == cached_.end() ? -1 : found->second.num_embeds;
}

bool EncoderCacheManager::check_and_reference(RequestId id, std::int32_t item) {
  const std::string& identifier = item_of(id, item).identifier;
  const auto found = cached_.find(identifier);
  if (found == cached_.end()) return false;
  if (found->second.users.empty()) {
    evictable_.erase(found->second.order);
    num_freeable_ -= found->second.num_embeds;
  }
  take_reference(found->second, id, item);
  return true;
}

void EncoderCacheManager::take_reference(Output& output, RequestId id, std::int32_t item) {
  if (output.users.insert(id).second) ++output.num_uses;
  output.last_use = ++clock_;
  requests_[id].referenced.insert(item);
}

void EncoderCacheManager::take(std::int32_t num_embeds) {
  num_free_ -= num_embeds;
  num_freeable_ -= num_embeds;
  CHECK(num_free_ >= 0, num_free_);
}

void EncoderCacheManager::give_back(std::int32_t num_embeds) {
  num_free_ += num_embeds;
  num_freeable_ += num_embeds;
}

EncoderCacheManager::EvictionOrder EncoderCacheManager::eviction_order(const Output& /*output*/,
                                                                       std::uint64_t now) const {
  return {0, now};
}
void EncoderCacheManager::on_evicted(const Output& /*output*/) {}
bool EncoderCacheManager::encodes_at(std::int32_t /*num_computed_tokens*/) const noexcept {
  return true;
}
std::int32_t EncoderCacheManager::end_of_need(const MultiModalFeature& item) const noexcept {
  return item.offset + item.length;
}

std::vector<std::string> EncoderCacheManager::evictable() const {
  std::vector<std::string> identifiers;
  for (const auto& [order, identifier] : evictable_) identifiers.push_back(identifier);
  return identifiers;
}

bool EncoderCacheManager::can_allocate(RequestId id, std::int32_t item, std::int32_t budget,
                                       std::int32_t num_planned) {
  const std::int32_t n = num_embeds(item_of(id, item));
  if (n > budget) return false;
  const std::int32_t needed = n + num_planned;
  if (needed <= num_free_) return true;
  if (needed > num_freeable_) return false;
  while (needed > num_free_) {
    const std::string identifier = std::move(evictable_.extract(evictable_.begin()).mapped());
    const auto evicted = cached_.find(identifier);
    on_evicted(evicted->second);
    num_free_ += evicted->second.num_embeds;
    cached_.erase(evicted);
    freed_.push_back(identifier);
  }
  return true;
}

void EncoderCacheManager::allocate(RequestId id, std::int32_t item) {
  const MultiModalFeature& feature = item_of(id, item);
  const std::int32_t n = num_embeds(feature);
  take(n);
  const auto [place, is_new] = cached_.try_emplace(feature.identifier);
  CHECK(is_new, feature.identifier);
  place->second.num_embeds = n;
  take_reference(place->second, id, item);
}

std::set<std::int32_t> EncoderCacheManager::referenced_items(RequestId id) const {
  const auto known = requests_.find(id);
  return known == requests_.end() ? std::set<std::int32_t>() : known->second.referenced;
}

void EncoderCacheManager::free_input(RequestId id, std::int32_t item) {
  Request& request = requests_[id];
  if (request.referenced.erase(item) == 0) return;
  const std::string& identifier = item_of(id, item).identifier;
  for (const std::int32_t other : request.referenced)
    if (item_of(id, other).identifier == identifier) return;
  const auto found = cached_.find(identifier);
  if (found == cached_.end() || found->second.users.erase(id) == 0) return;
  if (found->second.users.empty()) {
    found->second.order = eviction_order(found->second, ++clock_);
    evictable_.emplace(found->second.order, identifier);
    num_freeable_ += found->second.num_embeds;
  }
}

void EncoderCacheManager::free(RequestId id) {
  for (const std::int32_t item : referenced_items(id)) free_input(id, item);
}

std::vector<std::string> EncoderCacheManager::take_freed_identifiers() {
  std::vector<std::string> freed = std::exchange(freed_, {});
  std::erase_if(freed,
                [this](const std::string& identifier) { return cached_.contains(identifier); });
  return freed;
}

void EncoderCacheManager::reset() {
  cached_.clear();
  evictable_.clear();
  freed_.clear();
  for (auto& [id, request] : requests_) request.referenced.clear();
  num_free_ = num_freeable_ = settings_.capacity;
}

// ---- messages -----------------------------------------------------------------------------------

void EncoderCacheManager::apply(const EncoderCacheUpdates& updates) {
  for (const EncoderCacheRequest& request : updates.requests)
    set_request(request.id, request.items);
  for (const EncoderCacheCommand& command : updates.commands) {
    switch (command.kind) {
      case EncoderCacheCommandKind::kAllocate:
        if (!check_and_reference(command.id, command.value)) allocate(command.id, command.value);
        break;
      case EncoderCacheCommandKind::kFreeComputed:
        for (const std::int32_t item : referenced_items(command.id)) {
          const MultiModalFeature& feature = item_of(command.id, item);
          if (end_of_need(feature) <= command.value) free_input(command.id, item);
        }
        break;
      case EncoderCacheCommandKind::kFreeAll:
        free(command.id);
        break;
      case EncoderCacheCommandKind::kForget:
        free(command.id);
        requests_.erase(command.id);
        break;
      case EncoderCacheCommandKind::kReset:
        reset();
        break;
    }
  }
}

std::int32_t EncoderCacheManager::without_cut(const std::vector<MultiModalFeature>& items,
                                              const PlanEncoderInputs& question) {
  const std::int32_t begin = question.num_computed_tokens;
  const std::int32_t end = begin + question.num_new_tokens;
  for (const MultiModalFeature& item : items) {
    if (item.offset >= end || item.offset + item.length <= end) continue;
    for (const TokenSpan& run : embed_spans(item)) {
      if (run.begin >= end || run.end <= end) continue;
      if (run.begin > begin) return run.begin - begin;
      return run.end - begin <= question.max_new_tokens ? run.end - begin : 0;
    }
  }
  return question.num_new_tokens;
}

EncoderInputsPlanned EncoderCacheManager::plan(const PlanEncoderInputs& question) {
  apply(question.updates);
  const RequestId id = question.id;
  EncoderInputsPlanned answer{.num_new_tokens = question.num_new_tokens};
  const std::int32_t begin = question.num_computed_tokens;
  if (!encodes_at(begin)) return answer;
  const auto& items = requests_[id].items;
  if (settings_.whole_runs) answer.num_new_tokens = without_cut(items, question);
  if (answer.num_new_tokens == 0) return answer;
  std::int32_t budget = question.budget;
  std::int32_t num_external = 0;  // embeddings
  for (std::size_t i = 0; i < items.size(); ++i) {
    const MultiModalFeature& item = items[i];
    const auto index = static_cast<std::int32_t>(i);
    const std::int32_t end = begin + answer.num_new_tokens + question.shift;
    if (item.offset + item.length <= begin) continue;
    if (item.offset >= end) break;
    const std::int32_t before_item = std::max(item.offset - (begin + question.shift), 0);
    if (!settings_.split_items && begin < item.offset &&
        begin + answer.num_new_tokens < item.offset + item.length) {
      answer.num_new_tokens = before_item;
      break;
    }
    const std::int32_t n = num_embeds(item);
    const MultiModalFeature* same = nullptr;
    for (const std::vector<std::int32_t>* planned : {&answer.items, &answer.external_items})
      for (const std::int32_t other : *planned)
        if (items[static_cast<std::size_t>(other)].identifier == item.identifier)
          same = &items[static_cast<std::size_t>(other)];
    if (same != nullptr && shares_outputs()) {
      if (num_embeds(*same) != n) {
        answer.mismatch = true;
        answer.num_new_tokens = 0;
        break;
      }
      answer.duplicates.push_back(index);
      continue;
    }
    if (const std::int32_t cached = cached_embeds(id, index); cached >= 0) {
      if (cached != n) {
        answer.mismatch = true;
        answer.num_new_tokens = 0;
        break;
      }
      // One that this request has already, it has asked for in an earlier step.
      if (!requests_[id].referenced.contains(index)) ++answer.num_cached;
      check_and_reference(id, index);
      continue;
    }
    const auto is_in = [index](const std::vector<std::int32_t>& list) {
      return std::find(list.begin(), list.end(), index) != list.end();
    };
    if (is_in(question.pending_items)) {
      answer.pending_item = index;
      answer.num_new_tokens = before_item;
      break;
    }
    const bool is_external = is_in(question.external_items);
    const std::int32_t most = is_external ? std::numeric_limits<std::int32_t>::max() : budget;
    if (!can_allocate(id, index, most, answer.num_embeds + num_external)) {
      answer.num_new_tokens = before_item;
      break;
    }
    const std::int32_t first = std::max(begin - item.offset, 0);
    const std::int32_t last = std::min(end - item.offset, item.length);
    const bool has_embeds = item.is_embed.empty() ? first < last
                                                  : std::any_of(item.is_embed.begin() + first,
                                                                item.is_embed.begin() + last,
                                                                [](auto x) { return x != 0; });
    if (!has_embeds) continue;
    if (is_external) {
      num_external += n;
      answer.external_items.push_back(index);
      continue;
    }
    budget -= n;
    answer.num_embeds += n;
    answer.items.push_back(index);
  }
  if (answer.mismatch || answer.num_new_tokens == 0) {
    answer.items.clear(), answer.duplicates.clear(), answer.external_items.clear();
    answer.num_embeds = 0;
  }
  return answer;
}

FreedEncoderOutputs EncoderCacheManager::take_freed(const TakeFreedEncoderOutputs& question) {
  apply(question.updates);
  return {take_freed_identifiers()};
}

}  // namespace troupe
