#include "runtime/processors/input_queue.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <variant>

#include "runtime/base/check.hpp"
#include "runtime/processors/input_processor.hpp"

namespace troupe {
namespace {

std::int32_t microseconds(double seconds) {
  constexpr double kMax = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(std::clamp(std::ceil(1e6 * seconds), 1.0, kMax));
}

std::size_t bytes_of(const std::vector<std::string>& texts) {
  std::size_t num_bytes = 0;
  for (const std::string& text : texts) num_bytes += text.size();
  return num_bytes;
}

std::size_t bytes_of(const Prompt& prompt) {
  if (const auto* tokens = std::get_if<TokensPrompt>(&prompt)) return tokens->token_ids.size();
  const auto* chat = std::get_if<ChatPrompt>(&prompt);
  // A client's own template may do anything.
  const bool is_any = chat != nullptr && !chat->chat_template.empty();
  return text_bytes(prompt) + (is_any ? InputQueue::kLongBytes : 0);
}

}  // namespace

std::size_t input_bytes(const GenerateRequest& request) {
  return bytes_of(request.prompt) + bytes_of(request.params.stop) +
         bytes_of(request.params.bad_words);
}

std::size_t input_bytes(const RenderRequest& request) { return bytes_of(request.prompt); }

void InputQueue::add(const Item& item, double now) {
  const bool is_one_by_one = running_.size() == 1;
  const bool is_long = !is_one_by_one && item.num_bytes >= kLongBytes;
  const double place =
      is_one_by_one ? now : now + static_cast<double>(item.num_bytes) / kBytesPerSecond;
  const bool is_new = waiting_.emplace(item.number, Waiting{item.tenant, place, is_long}).second;
  CHECK(is_new, item.number);
  (is_long ? long_ : short_)[item.tenant].emplace(place, item.number);
  shares_.enter(item.tenant);
}

std::optional<InputQueue::Start> InputQueue::start_next(double now) {
  const auto idle = std::find(running_.begin(), running_.end(), std::nullopt);
  if (idle == running_.end()) return std::nullopt;
  const Lane* const lane = choose_lane();
  if (lane == nullptr) return std::nullopt;
  const std::uint64_t number = first_of(*lane, now);
  const Waiting item = take(number);
  *idle = Running{number, item.tenant, item.is_long, now};
  return Start{static_cast<std::size_t>(idle - running_.begin()), number};
}

InputQueue::Lane* InputQueue::choose_lane() {
  const auto num_long = static_cast<std::size_t>(
      std::count_if(running_.begin(), running_.end(),
                    [](const auto& running) { return running && running->is_long; }));
  const bool may_be_long = !long_.empty() && num_long + 1 < running_.size();
  if (may_be_long && (num_long == 0 || short_.empty())) return &long_;
  return short_.empty() ? nullptr : &short_;
}

/// What workers are at counts already: who has sent one long prompt after another waits behind who
/// has sent one.
std::uint64_t InputQueue::first_of(const Lane& lane, double now) const {
  std::map<std::uint32_t, double> spent;
  for (const auto& running : running_) {
    if (running) spent[running->tenant] += microseconds(now - running->since);
  }
  const Place* first = nullptr;
  double least = 0;
  for (const auto& [tenant, places] : lane) {
    const auto running = spent.find(tenant);
    const double served = shares_.served(tenant) + (running == spent.end() ? 0 : running->second);
    const Place& place = *places.begin();
    if (first != nullptr && (served > least || (served == least && place > *first))) continue;
    first = &place;
    least = served;
  }
  return first->second;
}

InputQueue::Waiting InputQueue::take(std::uint64_t number) {
  const Waiting item = waiting_.extract(number).mapped();
  Lane& lane = item.is_long ? long_ : short_;
  const auto places = lane.find(item.tenant);
  places->second.erase({item.place, number});
  if (places->second.empty()) lane.erase(places);
  return item;
}

std::uint64_t InputQueue::finish(std::size_t worker, double now) {
  CHECK(running_.at(worker).has_value(), worker);
  const Running ended = *std::exchange(running_[worker], std::nullopt);
  shares_.serve(ended.tenant, microseconds(now - ended.since), 0);
  shares_.leave(ended.tenant);
  return ended.number;
}

bool InputQueue::remove(std::uint64_t number) {
  if (!waiting_.contains(number)) return false;
  shares_.leave(take(number).tenant);
  return true;
}

}  // namespace troupe
