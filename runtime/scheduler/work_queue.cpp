#include "runtime/scheduler/work_queue.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe {
namespace {

std::int32_t microseconds(double seconds) {
  constexpr double kMax = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(std::clamp(std::ceil(1e6 * seconds), 1.0, kMax));
}

}  // namespace

void WorkQueue::add(const Item& item, double now) {
  const bool is_one_by_one = running_.size() == 1;
  const bool is_long = !is_one_by_one && item.num_bytes >= kLongBytes;
  const double place =
      is_one_by_one ? now : now + static_cast<double>(item.num_bytes) / kBytesPerSecond;
  const Client client = {item.tenant, is_one_by_one ? 0 : item.client};
  const bool is_new = waiting_.emplace(item.number, Waiting{client, place, is_long}).second;
  CHECK(is_new, item.number);
  (is_long ? long_ : short_)[client].emplace(place, item.number);
  enter(client);
}

void WorkQueue::enter(const Client& client) {
  shares_.enter(client.first);
  Share& share = clients_[client];
  if (share.num_items++ > 0) return;
  double least = std::numeric_limits<double>::infinity();
  for (auto other = clients_.lower_bound({client.first, 0});
       other != clients_.end() && other->first.first == client.first; ++other) {
    if (other->first != client) least = std::min(least, other->second.spent);
  }
  if (std::isfinite(least)) share.spent = least;
}

void WorkQueue::leave(const Client& client) {
  shares_.leave(client.first);
  const auto share = clients_.find(client);
  if (--share->second.num_items == 0) clients_.erase(share);
}

std::optional<WorkQueue::Start> WorkQueue::start_next(double now) {
  const auto idle = std::find(running_.begin(), running_.end(), std::nullopt);
  if (idle == running_.end()) return std::nullopt;
  const Lane* const lane = choose_lane();
  if (lane == nullptr) return std::nullopt;
  const std::uint64_t number = first_of(*lane, now);
  const Waiting item = take(number);
  *idle = Running{number, item.client, item.is_long, now};
  return Start{static_cast<std::size_t>(idle - running_.begin()), number};
}

WorkQueue::Lane* WorkQueue::choose_lane() {
  const auto num_long = static_cast<std::size_t>(
      std::count_if(running_.begin(), running_.end(),
                    [](const auto& running) { return running && running->is_long; }));
  const bool may_be_long = !long_.empty() && num_long + 1 < running_.size();
  if (may_be_long && (num_long == 0 || short_.empty())) return &long_;
  return short_.empty() ? nullptr : &short_;
}

/// Work in progress already counts: a client with several long prompts queues behind a client with
/// one.
std::uint64_t WorkQueue::first_of(const Lane& lane, double now) const {
  std::map<std::uint32_t, double> spent_on_tenants;
  std::map<Client, double> spent_on_clients;
  for (const auto& running : running_) {
    if (!running) continue;
    spent_on_tenants[running->client.first] += microseconds(now - running->since);
    spent_on_clients[running->client] += now - running->since;
  }
  const auto more = [](const auto& spent, const auto& who) {
    const auto found = spent.find(who);
    return found == spent.end() ? 0 : found->second;
  };
  using Rank = std::tuple<double, double, Place>;
  std::optional<Rank> first;
  std::uint32_t tenant_of_first = 0;
  for (const auto& [client, places] : lane) {
    const std::uint32_t tenant = client.first;
    Rank rank{shares_.served(tenant) + more(spent_on_tenants, tenant),
              clients_.at(client).spent + more(spent_on_clients, client), *places.begin()};
    // The service of clients is compared within a tenant only.
    const bool is_first = !first || (tenant == tenant_of_first
                                         ? rank < *first
                                         : std::tie(std::get<0>(rank), std::get<2>(rank)) <
                                               std::tie(std::get<0>(*first), std::get<2>(*first)));
    if (!is_first) continue;
    first = rank;
    tenant_of_first = tenant;
  }
  return std::get<2>(*first).second;
}

WorkQueue::Waiting WorkQueue::take(std::uint64_t number) {
  const Waiting item = waiting_.extract(number).mapped();
  Lane& lane = item.is_long ? long_ : short_;
  const auto places = lane.find(item.client);
  places->second.erase({item.place, number});
  if (places->second.empty()) lane.erase(places);
  return item;
}

std::uint64_t WorkQueue::finish(std::size_t worker, double now) {
  CHECK(running_.at(worker).has_value(), worker);
  const Running ended = *std::exchange(running_[worker], std::nullopt);
  shares_.serve(ended.client.first, microseconds(now - ended.since), 0);
  clients_.at(ended.client).spent += now - ended.since;
  leave(ended.client);
  return ended.number;
}

bool WorkQueue::remove(std::uint64_t number) {
  if (!waiting_.contains(number)) return false;
  leave(take(number).client);
  return true;
}

}  // namespace troupe
