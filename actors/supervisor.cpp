// The Supervisor: carries out what runtime/supervision decides. It starts the processes of its
// host, asks nodes and actors, and tells what has come of it.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "actors/deadlines.hpp"
#include "actors/engine_settings.hpp"
#include "actors/exceptions.hpp"
#include "actors/module.hpp"
#include "actors/network.hpp"
#include "actors/spawn.hpp"
#include "runtime/base/child_process.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"
#include "runtime/config/node_secrets.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/http/openai_request.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/supervision/supervision.hpp"
#include "runtime/transport/local_secret.hpp"
#include "runtime/transport/supervisor_file.hpp"
#include "runtime/worker/worker_group.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using namespace supervision;

constexpr auto kConfirmDelay = 200ms;
constexpr auto kRetireDeadline = 24h * 365;

/// The actors that the Supervisor's core knows by number.
class Handles {
 public:
  /// One that has a number keeps it.
  ActorId add(const caf::strong_actor_ptr& actor) {
    if (const ActorId known = find(caf::actor_cast<caf::actor_addr>(actor)); known != kNobody)
      return known;
    actors_.emplace(++last_, actor);
    return last_;
  }
  std::vector<ActorId> add_all(const ActorHandles& handles) {
    std::vector<ActorId> ids;
    for (const caf::strong_actor_ptr& handle : handles) ids.push_back(add(handle));
    return ids;
  }
  [[nodiscard]] ActorId find(const caf::actor_addr& address) const {
    const auto found = std::find_if(actors_.begin(), actors_.end(), [&](const auto& entry) {
      return caf::actor_cast<caf::actor_addr>(entry.second) == address;
    });
    return found == actors_.end() ? kNobody : found->first;
  }
  /// Null: it is not known any more.
  template <class Handle = caf::strong_actor_ptr>
  [[nodiscard]] Handle get(ActorId id) const {
    const auto found = actors_.find(id);
    return found == actors_.end() ? Handle{} : caf::actor_cast<Handle>(found->second);
  }
  template <class Handle = caf::strong_actor_ptr>
  [[nodiscard]] std::vector<Handle> get_all(const std::vector<ActorId>& ids) const {
    std::vector<Handle> handles;
    for (const ActorId id : ids) handles.push_back(get<Handle>(id));
    return handles;
  }
  /// Keeps those that commands may still name.
  void forget_others(const Supervision& core) {
    std::erase_if(actors_, [&](const auto& entry) { return !core.knows(entry.first); });
  }

 private:
  std::map<ActorId, caf::strong_actor_ptr> actors_;
  ActorId last_ = kNobody;
};

struct SupervisorState {
  SupervisorState() = default;
  static inline const char* name = "supervisor";

  StartOptions start;
  std::shared_ptr<EngineHandles> engine;
  SamplingDefaults sampling_defaults;
  AnswerDefaults answer_defaults;
  std::unique_ptr<Supervision> core;  ///< null before Start
  Handles handles;

  std::unique_ptr<Network> network;  ///< null: all is in one process
  std::optional<LocalSecret> local_secret;
  SupervisorRecord record;  ///< for the next Supervisor, if this process dies
  std::optional<SupervisorFile> file;
  std::optional<SupervisorRecord> predecessor;
  NodeSecrets secrets;     ///< of the processes that are started here
  std::uint16_t port = 0;  ///< where nodes join
  std::map<std::size_t, std::unique_ptr<ChildProcess>> processes;  ///< by node

  caf::typed_response_promise<Started> started;
  caf::typed_response_promise<Stopped> stopped;
  ActorId retiring = kNobody;  ///< the Frontend that is waited for

  /// Counts the Supervisors of the topology.
  [[nodiscard]] std::uint64_t epoch() const { return predecessor ? predecessor->epoch + 1 : 0; }
  /// Where the Frontend of the predecessor listens, or of the server that this one replaces; 0:
  /// there is none.
  [[nodiscard]] std::uint16_t http_port_before() const {
    return predecessor ? predecessor->http_port : start.replaces_port;
  }
};

using Self = SupervisorActor::stateful_pointer<SupervisorState>;

void carry_out(Self self);

// ---- What is asked, and what comes of it -------------------------------------------------------

/// Asks; the answer, or one that says what failed, goes to the core by `tell`, and what follows is
/// carried out.
template <class Answer, class Handle, class Tell, class Question>
void ask_for(Self self, const Handle& to, std::chrono::nanoseconds deadline,
             const std::string& what, Tell tell, Question&& question) {
  ask(self, to, deadline, std::forward<Question>(question))
      .then(
          [self, tell](Answer& answer) {
            tell(answer);
            carry_out(self);
          },
          [self, tell, what](const caf::error& error) {
            Answer answer;
            answer.error =
                Error{ErrorCode::kInternal, what + ": " + to_text(error, self->system())};
            tell(answer);
            carry_out(self);
          });
}

/// Asks a node for actors.
template <class OnSpawned, class... Question>
void ask_node(Self self, ActorId node, std::chrono::minutes deadline, const std::string& who,
              OnSpawned on_spawned, Question&&... question) {
  ask(self, state(self).handles.get<NodeActor>(node), deadline, std::forward<Question>(question)...)
      .then(
          [self, on_spawned](const Status& status, const ActorHandles& handles) {
            SpawnedActors spawned{.error = status.error, .actors = {}};
            const bool all_there = !handles.empty() && std::find(handles.begin(), handles.end(),
                                                                 nullptr) == handles.end();
            if (!spawned.error && !all_there)
              spawned.error = Error{ErrorCode::kInternal, "a node has started no actor", ""};
            if (!spawned.error) spawned.actors = state(self).handles.add_all(handles);
            on_spawned(spawned);
            carry_out(self);
          },
          [self, on_spawned, who](const caf::error& error) {
            on_spawned(SpawnedActors{
                .error = Error{ErrorCode::kInternal,
                               who + " did not start: " + to_text(error, self->system())},
                .actors = {}});
            carry_out(self);
          });
}

LossCause cause_of(ProcessEnd::Kind kind) {
  if (kind == ProcessEnd::Kind::kEnded) return LossCause::kOutside;
  return kind == ProcessEnd::Kind::kCrashed ? LossCause::kCrashed : LossCause::kKilled;
}

/// What is told when the process of a node has ended.
std::function<void(ProcessEnd)> tell_end(Self self, std::size_t node, std::uint64_t life) {
  const SupervisorActor me = self;
  return [me, exited = NodeExited{.node = static_cast<std::uint32_t>(node), .life = life}](
             ProcessEnd end) mutable {
    exited.how = std::move(end.text);
    exited.cause = cause_of(end.kind);
    post(me, exited);
  };
}

/// Something of it has changed.
void write_record(SupervisorState& supervisor) {
  if (!supervisor.file) return;
  supervisor.record.nodes.clear();
  for (const auto& [node, process] : supervisor.processes) {
    if (const auto id = ProcessId::of(process->pid()))
      supervisor.record.nodes.emplace_back(supervisor.core->node(node).name, *id);
  }
  if (auto written = supervisor.file->write(supervisor.record); !written.ok())
    log_warning("another supervisor would not find the nodes",
                kv("reason", written.error().message));
}

/// Carries out one command.
struct CommandRunner {
  Self self;
  SupervisorState& supervisor;

  template <class Handle>
  [[nodiscard]] Handle get(ActorId id) const {
    return supervisor.handles.get<Handle>(id);
  }

  void operator()(const StartProcess& what) const {
    const std::string& name = supervisor.core->node(what.node).name;
    std::vector<std::string> arguments = {supervisor.start.node_program, "node", name};
    const auto& own = supervisor.start.node_arguments;
    const auto end_of_options = std::find(own.begin(), own.end(), "--");
    arguments.insert(arguments.end(), own.begin(), end_of_options);
    arguments.insert(arguments.end(), {"--supervisor-port", std::to_string(supervisor.port)});
    if (!supervisor.start.serve_http)
      arguments.insert(arguments.end(), {"--supervisor-timeout-s", "0"});
    arguments.insert(arguments.end(), end_of_options, own.end());
    arguments.emplace_back(kReadSecretsOption);
    const bool stays = supervisor.start.options.topology.supervisor_timeout_s > 0;
    auto process = ChildProcess::start(
        arguments, tell_end(self, what.node, what.life), supervisor.secrets.encode(),
        stays ? ChildProcess::Orphan::kStays : ChildProcess::Orphan::kEnds);
    if (!process.ok())
      return supervisor.core->process_failed(now_seconds(), what.node, what.life, process.error());
    supervisor.core->process_started(what.node, what.life, (*process)->pid());
    supervisor.processes[what.node] = std::move(process).value();
    write_record(supervisor);
  }
  void operator()(const KillProcess& what) const {
    const auto process = supervisor.processes.find(what.node);
    if (process != supervisor.processes.end()) process->second->kill();
  }
  void operator()(const BeatHeart& what) const {
    send(self, get<HeartActor>(what.heart), Heartbeat{});
  }
  void operator()(const SendLeave& what) const {
    send(self, get<NodeActor>(what.node), what.message);
  }
  void operator()(const AskPrepare& what) const {
    ask_for<Status>(
        self, get<NodeActor>(what.actor), kControlDeadline,
        "node " + supervisor.core->node(what.node).name + " is not ready",
        [self = self, what](const Status& status) {
          state(self).core->node_prepared(now_seconds(), what.node, what.visit, status);
        },
        what.question);
  }
  void operator()(const AskWorker& what) const {
    ask_node(
        self, what.node, kControlDeadline, "worker " + std::to_string(what.question.rank),
        [self = self, what](const SpawnedActors& spawned) {
          state(self).core->worker_spawned(now_seconds(), what.incarnation, what.question, spawned);
        },
        what.question);
  }
  void operator()(const AskLoad& what) const {
    call_workers(what.executor, what.group, what.incarnation, kLoadDeadline,
                 LoadModel{worker_options(supervisor.start.options, what.parallel), what.ranks});
  }
  void operator()(const AskWorkers& what) const {
    call_workers(what.executor, what.group, what.incarnation,
                 std::holds_alternative<WarmUp>(what.method) ? kLoadDeadline : kControlDeadline,
                 what.method);
  }
  /// The Executor has the same deadline and names the ranks, so that it comes first.
  void call_workers(ActorId executor, std::uint32_t group, std::uint32_t incarnation,
                    std::chrono::seconds deadline, WorkerMethod method) const {
    const std::string what = std::string(name_of(method)) + ": the executor did not reply";
    ask_for<CollectiveRpcReply>(
        self, get<ExecutorActor>(executor), deadline + kControlDeadline, what,
        [self = self, group, incarnation](CollectiveRpcReply& reply) {
          state(self).core->workers_replied(now_seconds(), group, incarnation, std::move(reply));
        },
        CollectiveRpc{std::move(method), static_cast<double>(deadline.count())});
  }
  void operator()(const AskRole& what) const {
    ask_node(
        self, what.node, what.question.role == Role::kEncoder ? kLoadDeadline : kControlDeadline,
        "the " + std::string(spec_of(what.question.role).name),
        [self = self, question = what.question](const SpawnedActors& spawned) {
          state(self).core->role_spawned(now_seconds(), question, spawned);
        },
        what.question, supervisor.handles.get_all(what.peers));
  }
  void operator()(const AskListen& what) const {
    ask_for<Listening>(
        self, get<FrontendActor>(what.frontend), kControlDeadline,
        "the frontend did not open the port",
        [self = self, life = what.life](const Listening& listening) {
          state(self).core->port_opened(now_seconds(), life, listening);
        },
        Listen{});
  }
  void operator()(const SendEngine& what) const {
    send(self, get<RequestRouterActor>(what.router), what.message,
         supervisor.handles.get_all<InputProcessorActor>(what.input_processors),
         get<OutputProcessorActor>(what.output_processor), get<SchedulerActor>(what.scheduler));
  }
  void operator()(const SendLoss& what) const {
    send(self, get<RequestRouterActor>(what.router), what.message);
  }
  void operator()(const SendHealth& what) const {
    send(self, get<RequestRouterActor>(what.router), what.message);
  }
  void operator()(const SendRecord& what) const {
    send(self, get<NodeActor>(what.node), what.record);
  }
  void operator()(const SendRouter& what) const {
    send(self, get<NodeActor>(what.node), RouterReady{},
         ActorHandles{supervisor.handles.get(what.router)});
  }
  void operator()(const SendEncoders& what) const {
    send(self, get<NodeActor>(what.node), what.message, supervisor.handles.get_all(what.encoders));
  }
  void operator()(const WatchActor& what) const {
    const auto actor = get<caf::actor>(what.actor);
    self->monitor(actor);
    if (supervisor.start.on_spawned) supervisor.start.on_spawned(what.name, actor);
  }
  void operator()(const EndActor& what) const {
    caf::anon_send_exit(get<caf::actor>(what.actor),
                        what.at_once ? caf::exit_reason::kill : caf::exit_reason::user_shutdown);
  }
  void operator()(const ConfirmLater& what) const {
    const SupervisorActor me = self;
    send_after(self, kConfirmDelay, me, what.loss);
  }
  void operator()(const AnswerStart& what) const {
    if (!what.started.error) {
      EngineHandles& engine = *supervisor.engine;
      engine.request_defaults =
          request_defaults(supervisor.start.options, supervisor.sampling_defaults,
                           supervisor.answer_defaults, what.started.model);
      engine.router = get<RequestRouterActor>(what.router);
    }
    supervisor.record.http_port = what.started.port;
    write_record(supervisor);
    if (supervisor.started.pending()) supervisor.started.deliver(what.started);
  }
  void operator()(const AnnounceRouter& what) const {
    if (supervisor.start.on_router)
      supervisor.start.on_router(get<RequestRouterActor>(what.router));
  }
  void operator()(const AnnounceFailure& what) const {
    if (supervisor.start.on_failure) supervisor.start.on_failure(what.reason);
  }
  void operator()(const Quit& what) const {
    if (supervisor.stopped.pending()) supervisor.stopped.deliver(Stopped{what.clean});
    self->quit();
  }
};

/// Some commands have an outcome at once, with commands of its own.
void carry_out(Self self) {
  SupervisorState& supervisor = state(self);
  for (auto commands = supervisor.core->take_commands(); !commands.empty();
       commands = supervisor.core->take_commands()) {
    for (const Command& command : commands) std::visit(CommandRunner{self, supervisor}, command);
  }
}

// ---- Before this one ---------------------------------------------------------------------------

/// Another Supervisor with these options may take over from this one.
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

// ---- The beginning -----------------------------------------------------------------------------

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
  // Nodes of other hosts know no secret of this process; where they need none, nobody does.
  if (!topology.spans_hosts()) supervisor.secrets.cluster_secret = random_secret();
  supervisor.predecessor = find_predecessor(supervisor.start);
  if (auto& before = supervisor.predecessor; before && !topology.spans_hosts()) {
    const std::string secret = LocalSecret::find(before->port);
    secret.empty() ? before.reset() : void(supervisor.secrets.cluster_secret = secret);
  }
  if (const auto& before = supervisor.predecessor) {
    port = before->port;
    log_info("takes over from a supervisor that has died", kv("pid", before->process.pid),
             kv("port", port), kv("processes", before->nodes.size()));
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
      log_warning("nodes that are started by hand will not be let in",
                  kv("reason", published.error().message));
    }
  }
  if (options.insecure) {
    log_warning("nodes of other hosts come without TLS: whoever can connect can do anything",
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
  RETURN_IF_ERROR(check_items_fit(options.engine, settled.model));
  if (settled.cache.groups.empty()) {
    ASSIGN_OR_RETURN(settled.cache, kv_cache_config(options, settled.model));
  }
  ASSIGN_OR_RETURN(settled.model.max_model_len,
                   max_model_len(options, settled.model, settled.cache));
  return settled;
}

/// The processes of the predecessor are this one's from now on, and the next one may find them.
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
        tell_end(self, *index, life)({.text = "it had ended before"});
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

/// Options and generation config first, as they are quick to be wrong.
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

/// Alone, the nodes wait for the next Supervisor: one that is stuck had better be replaced.
void tell_alive(Self self) {
  if (const auto& on_check = state(self).start.on_check; on_check && state(self).network)
    on_check();
}

void start(Self self) {
  if (auto begun = begin(self); !begun.ok()) {
    state(self).started.deliver(Started{.error = begun.error()});
    return self->quit();
  }
  tell_alive(self);  // it may be stopped before the first check
  check_later(self);
  carry_out(self);
}

// ---- The end -----------------------------------------------------------------------------------

/// Asks who has requests to let them end; then calls `next`.
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

/// Clients that have no HTTP server in between are drained, then everything ends.
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
  const auto frontend = supervisor.handles.get<FrontendActor>(supervisor.core->frontend());
  drain(self, frontend, "frontend", drain_timeout_s,
        [=] { stop_without_frontend(self, drain_timeout_s); });
}

/// What the Frontend has served, or nobody can any more.
void end_retire(Self self) {
  if (std::exchange(state(self).retiring, kNobody) != kNobody) stop_without_frontend(self, 0);
}

/// Everything goes on, and is brought up again if it ends, until the Frontend has no connection.
void retire(Self self) {
  SupervisorState& supervisor = state(self);
  supervisor.core->retire();
  supervisor.retiring = supervisor.core->frontend();
  if (supervisor.retiring == kNobody) return stop_without_frontend(self, 0);
  log_info("retires: another server takes the connections to come");
  ask(self, supervisor.handles.get<FrontendActor>(supervisor.retiring), kRetireDeadline,
      Drain{.retire = true})
      .then([self](const Drained&) { end_retire(self); },
            [self](const caf::error& error) {
              log_warning("not retired", kv("error", to_text(error, self->system())));
              end_retire(self);
            });
}

// ---- What is told ------------------------------------------------------------------------------

/// The share that all workers have loaded. Comes from one of them, through its Executor.
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
  // Whoever asks an engine without HTTP is in this process, and gone with it.
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

bool can_resume(const StartOptions& options) { return find_predecessor(options).has_value(); }

SupervisorActor spawn_supervisor(caf::actor_system& system, const StartOptions& options,
                                 std::shared_ptr<EngineHandles> handles) {
  return system.spawn<caf::detached>(supervisor_behavior, options, std::move(handles));
}

}  // namespace troupe
