#pragma once
// Whose requests those in the engine are.

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "messages/engine_output.hpp"
#include "messages/ids.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// Owns who has asked for which live request. Each client names its requests by ids of its own
/// choice; in the engine they have other ones, so that clients need not know of each other. What
/// comes of a request goes to its client under the client's id; one final output, where the client
/// wants no others. Called by the RequestRouter.
class RequestClients {
 public:
  using Client = std::uint32_t;

  /// The engine's ids begin behind `first_id`.
  explicit RequestClients(std::uint64_t first_id = 0) : next_id_(first_id + 1) {}

  Client add_client();
  /// Its live requests are forgotten; returns their ids in the engine.
  std::vector<RequestId> remove_client(Client client);

  /// Returns the first of the `num_ids` consecutive ids in the engine. `joins`: the client is given
  /// the final output only. Error: kInvalidArgument, the client has a live request of this id.
  [[nodiscard]] Result<RequestId> add(Client client, RequestId own_id, std::int32_t num_ids,
                                      bool joins);
  /// Consecutive ids in the engine for what is no client's; the first of them.
  [[nodiscard]] RequestId allocate(std::int32_t num_ids);
  /// The id in the engine; none: there is no such live request.
  [[nodiscard]] std::optional<RequestId> find(Client client, RequestId own_id) const;
  /// It has ended, or never began.
  void remove(RequestId id);

  struct Share {
    Client client = 0;
    std::vector<RequestOutput> outputs;
  };
  /// Shares out what has come of requests, in order. Those that have ended are forgotten; outputs
  /// of others than live requests are dropped.
  [[nodiscard]] std::vector<Share> share_out(std::vector<RequestOutput> outputs);

  [[nodiscard]] std::size_t num_live() const noexcept { return requests_.size(); }

 private:
  struct Request {
    Client client = 0;
    RequestId own_id{};
    std::optional<RequestOutput> joined;  // so far, where the client wants the final output only
  };

  std::unordered_map<RequestId, Request> requests_;  // by their ids in the engine
  std::map<Client, std::unordered_map<RequestId, RequestId>> ids_;
  Client next_client_ = 1;
  std::uint64_t next_id_;
};

}  // namespace troupe
