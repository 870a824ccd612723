#pragma once
// The clients of the requests in the engine.

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

/// Maps live requests to their clients. Each client chooses its own request ids; the engine uses
/// different ones, so that clients are independent of each other. Outputs of a request go to its
/// client with the client's id; as one final output if the client requests that. Used by the
/// RequestRouter.
class RequestClients {
 public:
  using Client = std::uint32_t;

  /// The engine's ids start after `first_id`.
  explicit RequestClients(std::uint64_t first_id = 0) : next_id_(first_id + 1) {}

  Client add_client();
  /// Forgets the client's live requests; returns their ids in the engine.
  std::vector<RequestId> remove_client(Client client);

  /// Returns the first of the `num_ids` consecutive ids in the engine. `joins`: the client gets the
  /// final output only. Error: kInvalidArgument, the client has a live request with this id.
  [[nodiscard]] Result<RequestId> add(Client client, RequestId own_id, std::int32_t num_ids,
                                      bool joins);
  /// Allocates consecutive ids in the engine without a client; returns the first.
  [[nodiscard]] RequestId allocate(std::int32_t num_ids);
  /// The id in the engine; nullopt: no such live request.
  [[nodiscard]] std::optional<RequestId> find(Client client, RequestId own_id) const;
  /// The request has finished, or was never started.
  void remove(RequestId id);

  struct Share {
    Client client = 0;
    std::vector<RequestOutput> outputs;
  };
  /// Distributes outputs to clients, in order. Finished requests are forgotten; outputs of unknown
  /// requests are dropped.
  [[nodiscard]] std::vector<Share> share_out(std::vector<RequestOutput> outputs);

  [[nodiscard]] std::size_t num_live() const noexcept { return requests_.size(); }

 private:
  struct Request {
    Client client = 0;
    RequestId own_id{};
    std::optional<RequestOutput> joined;  // so far, if the client requests the final output only
  };

  std::unordered_map<RequestId, Request> requests_;  // by their ids in the engine
  std::map<Client, std::unordered_map<RequestId, RequestId>> ids_;
  Client next_client_ = 1;
  std::uint64_t next_id_;
};

}  // namespace troupe
