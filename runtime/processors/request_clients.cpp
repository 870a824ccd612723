#include "runtime/processors/request_clients.hpp"

#include <algorithm>

#include "runtime/processors/final_output.hpp"

namespace troupe {

RequestClients::Client RequestClients::add_client() {
  ids_.emplace(next_client_, std::unordered_map<RequestId, RequestId>{});
  return next_client_++;
}

std::vector<RequestId> RequestClients::remove_client(Client client) {
  std::vector<RequestId> live;
  const auto found = ids_.find(client);
  if (found == ids_.end()) return live;
  for (const auto& [own_id, id] : found->second) {
    live.push_back(id);
    requests_.erase(id);
  }
  ids_.erase(found);
  std::sort(live.begin(), live.end());
  return live;
}

Result<RequestId> RequestClients::add(Client client, RequestId own_id, std::int32_t num_ids,
                                      bool joins) {
  if (find(client, own_id)) {
    return invalid_argument(
        "id " + to_string(own_id) + " is in use by another live request of this client", "id");
  }
  const RequestId id = allocate(num_ids);
  ids_.at(client).emplace(own_id, id);
  Request& request = requests_[id];
  request = {.client = client, .own_id = own_id};
  if (joins) request.joined.emplace();
  return id;
}

RequestId RequestClients::allocate(std::int32_t num_ids) {
  const RequestId first{next_id_};
  next_id_ += static_cast<std::uint64_t>(std::max(num_ids, 1));
  return first;
}

std::optional<RequestId> RequestClients::find(Client client, RequestId own_id) const {
  const auto ids = ids_.find(client);
  if (ids == ids_.end()) return std::nullopt;
  const auto id = ids->second.find(own_id);
  return id == ids->second.end() ? std::nullopt : std::optional(id->second);
}

void RequestClients::remove(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  ids_.at(found->second.client).erase(found->second.own_id);
  requests_.erase(found);
}

std::vector<RequestClients::Share> RequestClients::share_out(std::vector<RequestOutput> outputs) {
  std::vector<Share> shares;
  for (RequestOutput& output : outputs) {
    const auto found = requests_.find(output.id);
    if (found == requests_.end()) continue;
    auto& [client, own_id, joined] = found->second;
    const RequestId id = output.id;
    const bool finished = output.finished;
    output.id = own_id;
    if (joined) {
      append_output(*joined, std::move(output));
      if (!finished) continue;
      output = *std::move(joined);
    }
    auto share = std::find_if(shares.begin(), shares.end(),
                              [&, who = client](const Share& s) { return s.client == who; });
    if (share == shares.end()) {
      share = shares.insert(shares.end(), Share{.client = client, .outputs = {}});
      share->outputs.reserve(outputs.size());
    }
    share->outputs.push_back(std::move(output));
    if (finished) remove(id);
  }
  return shares;
}

}  // namespace troupe
