#include "runtime/processors/encoder_coordinator.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "runtime/base/hash.hpp"

namespace troupe {
namespace {

std::uint64_t rank_of(const std::string& encoder, const std::string& identifier) {
  const auto digest = xxh3_128(encoder + '\n' + identifier);
  std::uint64_t rank = 0;
  std::memcpy(&rank, digest.data(), sizeof(rank));
  return rank;
}

}  // namespace

void EncoderCoordinator::set_encoders(std::span<const Encoder> encoders) {
  std::vector<Slot> slots;
  for (const Encoder& encoder : encoders) {
    const auto known = std::ranges::find(slots_, encoder, &Slot::encoder);
    if (known != slots_.end())
      slots.push_back(std::move(*known));
    else
      slots.push_back({.encoder = encoder});
  }
  slots_ = std::move(slots);
}

EncoderCoordinator::Slot* EncoderCoordinator::find(std::uint64_t encoder) {
  const auto found =
      std::ranges::find_if(slots_, [&](const Slot& slot) { return slot.encoder.id == encoder; });
  return found == slots_.end() ? nullptr : &*found;
}

std::optional<EncoderCoordinator::Choice> EncoderCoordinator::choose(
    const std::string& identifier, std::span<const std::uint64_t> tried) const {
  const Slot* first = nullptr;
  const Slot* least_busy = nullptr;
  std::uint64_t first_rank = 0;
  for (const Slot& slot : slots_) {
    if (std::ranges::find(tried, slot.encoder.id) != tried.end()) continue;
    if (slot.has(identifier)) return Choice{slot.encoder.id, true};
    const std::uint64_t rank = rank_of(slot.encoder.name, identifier);
    if (first == nullptr || rank > first_rank) {
      first = &slot;
      first_rank = rank;
    }
    if (least_busy == nullptr || slot.num_in_flight < least_busy->num_in_flight) least_busy = &slot;
  }
  if (first == nullptr) return std::nullopt;
  if (first->num_in_flight >= least_busy->num_in_flight + kMaxAhead) first = least_busy;
  return Choice{first->encoder.id, false};
}

std::vector<std::uint64_t> EncoderCoordinator::candidates(const std::string& identifier) const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranked;  // rank, id
  for (const Slot& slot : slots_) {
    constexpr std::uint64_t kFirst = std::numeric_limits<std::uint64_t>::max();
    ranked.emplace_back(slot.has(identifier) ? kFirst : rank_of(slot.encoder.name, identifier),
                        slot.encoder.id);
  }
  std::ranges::sort(ranked, std::greater());
  std::vector<std::uint64_t> ids;
  for (const auto& [rank, id] : ranked) ids.push_back(id);
  return ids;
}

void EncoderCoordinator::sent(std::uint64_t encoder) {
  if (Slot* const slot = find(encoder)) ++slot->num_in_flight;
}

void EncoderCoordinator::answered(std::uint64_t encoder, const std::string& identifier,
                                  bool has_output) {
  Slot* const slot = find(encoder);
  if (slot == nullptr) return;
  --slot->num_in_flight;
  slot->outputs.put(identifier, has_output);
}

}  // namespace troupe
