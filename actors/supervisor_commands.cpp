#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "actors/deadlines.hpp"
#include "actors/supervisor_state.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"

namespace troupe::supervisor {
namespace {

using namespace std::chrono_literals;

constexpr auto kConfirmDelay = 200ms;

/// Asks; `tell` passes the answer, or one with the error, to the core, whose commands are then
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
              spawned.error = Error{ErrorCode::kInternal, "a node did not start an actor", ""};
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

/// Carries out a command.
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
  /// The Executor has the same deadline and names the ranks, so its answer should come first.
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

}  // namespace

std::function<void(ProcessEnd)> tell_end(Self self, std::size_t node, std::uint64_t life) {
  const SupervisorActor me = self;
  return [me, exited = NodeExited{.node = static_cast<std::uint32_t>(node), .life = life}](
             ProcessEnd end) mutable {
    exited.how = std::move(end.text);
    exited.cause = cause_of(end.kind);
    post(me, exited);
  };
}

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

void carry_out(Self self) {
  SupervisorState& supervisor = state(self);
  for (auto commands = supervisor.core->take_commands(); !commands.empty();
       commands = supervisor.core->take_commands()) {
    for (const Command& command : commands) std::visit(CommandRunner{self, supervisor}, command);
  }
}

}  // namespace troupe::supervisor
