// Starting what computes: a node's Workers and encoders.
#include <algorithm>

#include "actors/deadlines.hpp"
#include "actors/network.hpp"
#include "actors/node_state.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/ec_transfer/remote_outputs.hpp"
#include "runtime/transport/step_rings.hpp"

namespace troupe::node {
namespace {

/// Errors: unreadable files of the credentials.
Result<WorkerTransfer> worker_transfer(const NodeState& node) {
  const Options& options = node.options;
  WorkerTransfer transfer{.config = kv_transfer_config(options.engine)};
  if (transfer.config.empty()) return transfer;
  const TopologyOptions& security = options.topology;
  if (security.insecure || !security.tls_certificate.empty() ||
      !security.cluster_secret_file.empty()) {
    ASSIGN_OR_RETURN(transfer.credentials, load_credentials(security, {}));
  }
  ASSIGN_OR_RETURN(const Topology topology, options_topology(options));
  if (topology.spans_hosts())
    transfer.host = node.config.host.empty() ? security.supervisor_host : node.config.host;
  return transfer;
}

}  // namespace

std::shared_ptr<RemoteOutputs> remote_outputs(Self self) {
  const EncoderRouterActor& router = state(self).encoder_router;
  return router ? make_remote_outputs(self->system(), router) : nullptr;
}

caf::result<Status, ActorHandles> start_worker(Self self, const SpawnWorker& what) {
  NodeState& node = state(self);
  const auto& ranks = node.config.workers;
  const auto& groups = node.config.groups;
  const auto rank = std::find(ranks.begin(), ranks.end(), what.rank);
  const auto group = std::find(groups.begin(), groups.end(), static_cast<std::int32_t>(what.group));
  if (rank == ranks.end() || group == groups.end()) {
    return {Status{invalid_argument("worker " + std::to_string(what.rank) + " of group " +
                                    std::to_string(what.group) + " is not placed in '" +
                                    node.config.name + "'")},
            ActorHandles{}};
  }
  const auto place = (group - groups.begin()) * std::ssize(ranks) + (rank - ranks.begin());
  const auto progress = node.pulse->workers[static_cast<std::size_t>(place)];
  progress->busy_since_ns = 0;
  caf::strong_actor_ptr& worker = node.groups[what.group].workers[what.rank];
  if (worker) end(worker);
  auto transfer = worker_transfer(node);
  if (!transfer.ok()) return {Status{transfer.error()}, ActorHandles{}};
  transfer->remote_outputs = remote_outputs(self);
  worker = pointer(spawn_worker(
      self->system(), what.rank, progress,
      CrashToken{node.options.server.dev_crash_token, node.options.server.dev_crash_signal},
      std::move(*transfer)));
  return {Status{}, ActorHandles{worker}};
}

caf::result<Status, ActorHandles> start_encoder(Self self, const SpawnRole& what) {
  NodeState& node = state(self);
  auto connector = parse_connector_config(ConnectorKind::kEC, ec_transfer_config(node.options));
  if (!connector.ok()) return {Status{connector.error()}, ActorHandles{}};
  EncoderConfig config{.worker = worker_options(node.options, {}),
                       .connector = std::move(connector).value()};
  if (!node.config.device.empty()) config.worker.device = node.config.device;
  const EncoderHandles spawned = spawn_encoder(self->system(), config, node.pulse->workers.back());
  auto promise = self->make_response_promise<Status, ActorHandles>();
  ask(self, spawned.worker, kLoadDeadline, LoadEncoder{})
      .then(
          [=](const Status& status) mutable {
            if (status.error) {
              end(pointer(spawned.encoder));
              promise.deliver(status, ActorHandles{});
              return;
            }
            RoleActors& actors =
                state(self).groups[what.group].actors.at(static_cast<std::size_t>(what.role));
            std::for_each(actors.handles.begin(), actors.handles.end(), end);
            actors = {{pointer(spawned.encoder)}, what.incarnation, what.life};
            promise.deliver(Status{}, actors.handles);
          },
          [=](const caf::error& error) mutable { promise.deliver(error); });
  return promise;
}

void take_rings(Self self, const OpenRings& open) {
  const WorkerRings& rings = open.rings;
  GroupActors& group = state(self).groups[open.group];
  const auto worker = group.workers.find(rings.rank);
  if (worker == group.workers.end()) return;  // of an earlier engine
  caf::strong_actor_ptr& before = group.remote_executors[rings.rank];
  if (before) end(before);
  auto executor =
      spawn_remote_executor(self->system(), rings, caf::actor_cast<WorkerActor>(worker->second));
  if (executor.ok()) {
    before = pointer(*executor);
  } else {
    post_exit(caf::actor_cast<caf::actor>(worker->second),
              exit_reason_of("a worker has no rings: " + executor.error().message));
  }
}

}  // namespace troupe::node
