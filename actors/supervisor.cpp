// The Supervisor: passes events to the core in runtime/supervision, which decides, and carries out
// its commands.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "actors/deadlines.hpp"
#include "actors/exceptions.hpp"
#include "actors/spawn.hpp"
#include "actors/supervisor_state.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/http/openai_request.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/worker/worker_group.hpp"

namespace troupe {
namespace supervisor {
namespace {

using namespace std::chrono_literals;

constexpr auto kRetireDeadline = 24h * 365;

// ---- The predecessor ---------------------------------------------------------------------------

/// A Supervisor with the same options may take over from this one.
std::string identity_of(const StartOptions& start) {
  std::string text = start.options.config_file;
  for (const std::string& argument : start.node_arguments) text.append(1, '\0').append(argument);
  return to_hex(xxh3_128(text));
}

std::optional<SupervisorRecord> find_predecessor(const StartOptions& start) {
  const TopologyOptions& topology = start.options.topology;
  if (!start.serve_http || topology.supervisor_timeout_s == 0) return std::nullopt;
  return SupervisorFile::find_dead(identity_of(start),
                                   static_cast<std::uint16_t>(topology.supervisor_port));
}

// ---- Starting -----------------------------------------------------------------------------

/// Opens the port for nodes.
Result<void> open_network(Self self, const Topology& topology) {
  SupervisorState& supervisor = state(self);
  if (!self->system().has_middleman())
    return invalid_argument("several nodes need CAF's middleman: load it into the configuration");
  const auto here = std::find_if(topology.nodes.begin(), topology.nodes.end(),
                                 [](const NodeConfig& node) { return node.host.empty(); });
  if (here != topology.nodes.end() && supervisor.start.node_program.empty()) {
    return invalid_argument("node-program is not set: node '" + here->name +
                                "' is a process of this host, which runs the program troupe",
                            "node-program");
  }
  const TopologyOptions& options = supervisor.start.options.topology;
  auto port = static_cast<std::uint16_t>(options.supervisor_port);
  // Nodes of other hosts cannot know a secret of this process; on one host all nodes need it.
  if (!topology.spans_hosts()) supervisor.secrets.cluster_secret = random_secret();
  supervisor.predecessor = find_predecessor(supervisor.start);
  if (auto& before = supervisor.predecessor; before && !topology.spans_hosts()) {
    const std::string secret = LocalSecret::find(before->port);
    secret.empty() ? before.reset() : void(supervisor.secrets.cluster_secret = secret);
  }
  if (const auto& before = supervisor.predecessor) {
    port = before->port;
    log_info("taking over from a dead supervisor", kv("pid", before->process.pid), kv("port", port),
             kv("processes", before->nodes.size()));
  }
  supervisor.secrets.arguments = take_secret_options(supervisor.start.node_arguments);
  ASSIGN_OR_RETURN(auto credentials, load_credentials(options, supervisor.secrets.cluster_secret));
  supervisor.network =
      std::make_unique<Network>(self->system(), std::move(credentials), Network::Side::kSupervisor);
  ASSIGN_OR_RETURN(supervisor.port,
                   supervisor.network->publish(self, options.supervisor_host, port));
  if (const std::string& secret = supervisor.secrets.cluster_secret; !secret.empty()) {
    auto published = LocalSecret::publish(supervisor.port, secret);
    if (published.ok()) {
      supervisor.local_secret.emplace(std::move(published).value());
    } else {
      log_warning("nodes that are started by hand will be rejected",
                  kv("reason", published.error().message));
    }
  }
  if (options.insecure) {
    log_warning("nodes of other hosts connect without TLS: whoever can connect has full control",
                kv("host", options.supervisor_host), kv("port", supervisor.port));
  }
  log_info("waiting for nodes", kv("host", options.supervisor_host), kv("port", supervisor.port),
           kv("nodes", topology.nodes.size()), kv("tls", !options.tls_certificate.empty()));
  return {};
}

Result<SettledModel> settle_model(const Options& options, std::span<const ModelLoaded> loaded,
                                  const KVCacheConfig& before) {
  SettledModel settled{.model = {}, .cache = before};
  ASSIGN_OR_RETURN(settled.model, join_loaded(loaded));
  RETURN_IF_ERROR(check_items(options.engine, settled.model));
  if (settled.cache.groups.empty()) {
    ASSIGN_OR_RETURN(settled.cache, kv_cache_config(options, settled.model));
  }
  ASSIGN_OR_RETURN(settled.model.max_model_len,
                   max_model_len(options, settled.model, settled.cache));
  return settled;
}

/// Adopts the processes of the predecessor, and records them for the next Supervisor.
void open_file(Self self, const std::string& identity) {
  SupervisorState& supervisor = state(self);
  if (const auto& before = supervisor.predecessor) {
    for (const auto& [name, process] : before->nodes) {
      const auto index = supervisor.core->find_node(name);
      if (!index || !process.is_alive()) continue;
      const std::uint64_t life = supervisor.core->adopt_process(now_seconds(), *index, process.pid);
      auto adopted = ChildProcess::adopt(process.pid, tell_end(self, *index, life));
      if (adopted.ok()) {
        supervisor.processes[*index] = std::move(adopted).value();
      } else {
        tell_end(self, *index, life)({.text = "it had ended already"});
      }
    }
  }
  supervisor.record = {.identity = identity,
                       .process = ProcessId::of(getpid()).value_or(ProcessId{.pid = getpid()}),
                       .epoch = supervisor.epoch(),
                       .port = supervisor.port,
                       .http_port = supervisor.http_port_before()};
  auto file = SupervisorFile::create(supervisor.record);
  if (!file.ok())
    return log_warning("another supervisor would not find the nodes",
                       kv("reason", file.error().message));
  supervisor.file.emplace(std::move(file).value());
  write_record(supervisor);
}

/// Checks options and generation config first, as that is quick.
Result<void> begin(Self self) {
  SupervisorState& supervisor = state(self);
  const Options& options = supervisor.start.options;
  ASSIGN_OR_RETURN(const GenerationConfig generation, load_generation_config(options.model.model));
  ASSIGN_OR_RETURN(supervisor.sampling_defaults, sampling_defaults(generation, options.model));
  ASSIGN_OR_RETURN(supervisor.answer_defaults, answer_defaults(options));
  ASSIGN_OR_RETURN(Topology topology, options_topology(options));
  RETURN_IF_ERROR(check_encoders(options));
  const bool single_process = topology.nodes.size() == 1 && topology.nodes.front().name.empty();
  std::string identity;
  if (!single_process) {
    identity = identity_of(supervisor.start);
    RETURN_IF_ERROR(open_network(self, topology));
  }
  const NodeConfig first = topology.nodes.front();
  supervisor.core = std::make_unique<Supervision>(SupervisionConfig{
      .topology = std::move(topology),
      .serve_http = supervisor.start.serve_http,
      .parallel = parallel_config(options.engine),
      .supervisor_host = options.topology.supervisor_host,
      .supervisor_port = static_cast<std::uint16_t>(options.topology.supervisor_port),
      .node_timeout_s = options.topology.node_timeout_s,
      .step_timeout_s = options.topology.step_timeout_s,
      .epoch = supervisor.epoch(),
      .http_port = supervisor.http_port_before(),
      .name = "troupe-" + std::to_string(getpid()) + "-" + random_secret(),
      .secret = random_secret(),
      .settle = [self](std::span<const ModelLoaded> loaded, const KVCacheConfig& before) {
        return settle_model(state(self).start.options, loaded, before);
      }});
  if (single_process) {
    const NodeHandles node = spawn_node(self->system(), options, first);
    supervisor.core->add_own_node(
        supervisor.handles.add(caf::actor_cast<caf::strong_actor_ptr>(node.node)),
        supervisor.handles.add(caf::actor_cast<caf::strong_actor_ptr>(node.heart)));
  }
  if (!single_process && options.topology.supervisor_timeout_s > 0) open_file(self, identity);
  supervisor.core->start(now_seconds());
  return {};
}

void check_later(Self self) {
  const SupervisorActor me = self;
  const auto interval = std::chrono::duration_cast<caf::timespan>(
      std::chrono::duration<double>(supervision::kCheckInterval_s));
  send_after(self, interval, me, CheckNodes{});
}

/// Without a Supervisor the nodes wait for the next one, so one that hangs should be replaced.
void tell_alive(Self self) {
  if (const auto& on_check = state(self).start.on_check; on_check && state(self).network)
    on_check();
}

void start(Self self) {
  if (auto begun = begin(self); !begun.ok()) {
    state(self).started.deliver(Started{.error = begun.error()});
    return self->quit();
  }
  tell_alive(self);  // it may hang before the first check
  check_later(self);
  carry_out(self);
}

// ---- Stopping -----------------------------------------------------------------------------------

/// Drains the requests of an actor, then calls `next`.
template <class Handle, class Next>
void drain(Self self, const Handle& who, const char* name, double timeout_s, Next next) {
  if (!who) return next();
  ask(self, who, from_seconds(timeout_s) + kControlDeadline, Drain{timeout_s})
      .then(
          [=](const Drained& drained) {
            log_info("drained", kv("who", name), kv("aborted", drained.num_aborted));
            next();
          },
          [=](const caf::error& error) {
            log_warning("not drained", kv("who", name),
                        kv("error", to_text(error, self->system())));
            next();
          });
}

/// Drains the clients that do not use HTTP, then ends everything.
void stop_without_frontend(Self self, double drain_timeout_s) {
  const SupervisorState& supervisor = state(self);
  const auto router = supervisor.handles.get<RequestRouterActor>(supervisor.core->router());
  drain(self, router, "request router", drain_timeout_s, [self] {
    state(self).core->stop(now_seconds());
    carry_out(self);
  });
}

void stop(Self self, double drain_timeout_s) {
  const SupervisorState& supervisor = state(self);
  if (supervisor.core->is_stopping()) return;  // the start was refused
  const auto frontend = supervisor.handles.get<FrontendActor>(supervisor.core->frontend());
  drain(self, frontend, "frontend", drain_timeout_s,
        [=] { stop_without_frontend(self, drain_timeout_s); });
}

/// The Frontend has served its connections, or has ended.
void end_retire(Self self) {
  if (std::exchange(state(self).retiring, kNobody) != kNobody) stop_without_frontend(self, 0);
}

/// Everything keeps running, and is restarted if it ends, until the Frontend has no connections.
void retire(Self self) {
  SupervisorState& supervisor = state(self);
  supervisor.core->retire();
  supervisor.retiring = supervisor.core->frontend();
  if (supervisor.retiring == kNobody) return stop_without_frontend(self, 0);
  log_info("retiring: another server accepts new connections");
  ask(self, supervisor.handles.get<FrontendActor>(supervisor.retiring), kRetireDeadline,
      Drain{.retire = true})
      .then([self](const Drained&) { end_retire(self); },
            [self](const caf::error& error) {
              log_warning("not retired", kv("error", to_text(error, self->system())));
              end_retire(self);
            });
}

// ---- Events ------------------------------------------------------------------------------

/// Reports the fraction that all workers have loaded; the message is from one of them.
void on_progress(Self self, LoadProgress progress) {
  SupervisorState& supervisor = state(self);
  if (!supervisor.start.on_progress || !supervisor.core->is_starting()) return;
  const auto sender = caf::actor_cast<caf::actor_addr>(self->current_sender());
  progress.fraction = supervisor.core->load_progress(supervisor.handles.find(sender), progress.rank,
                                                     progress.fraction);
  supervisor.start.on_progress(progress);
}

NodeAccepted on_join(Self self, const JoinNode& join, const ActorHandles& handles) {
  SupervisorState& supervisor = state(self);
  const caf::node_id home = self->current_sender() ? self->current_sender()->node() : self->node();
  const bool is_elsewhere =
      handles.size() == 2 + join.actors.size() &&
      std::all_of(handles.begin(), handles.end(), [&](const caf::strong_actor_ptr& handle) {
        return handle && handle->node() == home && home != self->node();
      });
  return supervisor.core->join(
      now_seconds(), join,
      is_elsewhere ? supervisor.handles.add_all(handles) : std::vector<ActorId>{});
}

ActorId sender_of(Self self) {
  return state(self).handles.find(caf::actor_cast<caf::actor_addr>(self->current_sender()));
}

SupervisorActor::behavior_type supervisor_behavior(Self self, const StartOptions& options,
                                                   const std::shared_ptr<EngineHandles>& handles) {
  state(self).start = options;
  // Clients of an engine without HTTP are in this process, and end with it.
  if (!options.serve_http) state(self).start.options.topology.supervisor_timeout_s = 0;
  state(self).engine = handles;
  self->set_down_handler([self](const caf::down_msg& down) {
    state(self).core->actor_down(now_seconds(), state(self).handles.find(down.source),
                                 to_text(down.reason, self->system()),
                                 down.reason == caf::exit_reason::remote_link_unreachable);
    carry_out(self);
  });
  self->set_exception_handler([self](std::exception_ptr& exception) -> caf::error {
    const std::string reason = "the supervisor ends: " + describe(exception);
    log_error("the supervisor ends", kv("reason", reason));
    if (state(self).started.pending()) {
      state(self).started.deliver(Started{.error = Error{ErrorCode::kInternal, reason}});
    } else {
      state(self).core->give_up(reason);
      carry_out(self);
    }
    return exit_reason_of(reason);
  });
  return {
      [self](const Start&) -> caf::result<Started> {
        state(self).started = self->make_response_promise<Started>();
        auto promise = state(self).started;
        start(self);
        return promise;
      },
      [self](const Stop& message) -> caf::result<Stopped> {
        state(self).stopped = self->make_response_promise<Stopped>();
        auto promise = state(self).stopped;
        message.retire ? retire(self) : stop(self, message.drain_timeout_s);
        return promise;
      },
      [self](const LoadProgress& progress) { on_progress(self, progress); },
      [self](const JoinNode& join, const ActorHandles& handles) {
        NodeAccepted accepted = on_join(self, join, handles);
        carry_out(self);
        return accepted;
      },
      [self](const NodeConnected& connected) {
        state(self).core->node_connected(now_seconds(), sender_of(self), connected);
        carry_out(self);
      },
      [self](const HeartbeatReply& reply) {
        state(self).core->heart_beat(now_seconds(), sender_of(self), reply);
        carry_out(self);
      },
      [self](const EndGroup& end) {
        const auto ended = state(self).core->end_group(now_seconds(), end.group);
        carry_out(self);
        return Status{ended.ok() ? std::nullopt : std::optional(ended.error())};
      },
      [self](const EngineRefused& refused) {
        state(self).core->engine_refused(now_seconds(), refused);
        carry_out(self);
      },
      [self](const AskTopology&) { return state(self).core->status(); },
      [self](const NodeExited& exited) {
        state(self).processes.erase(exited.node);
        write_record(state(self));
        state(self).core->process_exited(now_seconds(), exited);
        carry_out(self);
      },
      [self](const CheckNodes&) {
        state(self).core->check(now_seconds());
        carry_out(self);
        tell_alive(self);
        if (state(self).core->frontend() != state(self).retiring) end_retire(self);
        state(self).handles.forget_others(*state(self).core);
        check_later(self);
      },
      [self](const ConfirmLoss& loss) {
        state(self).core->confirm_loss(now_seconds(), loss);
        carry_out(self);
      },
  };
}

}  // namespace
}  // namespace supervisor

bool can_resume(const StartOptions& options) {
  return supervisor::find_predecessor(options).has_value();
}

SupervisorActor spawn_supervisor(caf::actor_system& system, const StartOptions& options,
                                 std::shared_ptr<EngineHandles> handles) {
  return system.spawn<caf::detached>(supervisor::supervisor_behavior, options, std::move(handles));
}

}  // namespace troupe
