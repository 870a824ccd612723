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

LossCause cause_of(ProcessEnd::Kind kind) {
  if (kind == ProcessEnd::Kind::kEnded) return LossCause::kOutside;
  return kind == ProcessEnd::Kind::kCrashed ? LossCause::kCrashed : LossCause::kKilled;
}

void run(Self self, const StartProcess& what) {
  SupervisorState& supervisor = state(self);
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

void run(Self self, const KillProcess& what) {
  SupervisorState& supervisor = state(self);
  const auto process = supervisor.processes.find(what.node);
  if (process != supervisor.processes.end()) process->second->kill();
}

void run(Self self, const BeatHeart& what) {
  send(self, actor_of<HeartActor>(self, what.heart), Heartbeat{});
}

void run(Self self, const SendLeave& what) {
  send(self, actor_of<NodeActor>(self, what.node), what.message);
}

void run(Self self, const SendEngine& what) {
  send(self, actor_of<RequestRouterActor>(self, what.router), what.message,
       state(self).handles.get_all<InputProcessorActor>(what.input_processors),
       actor_of<OutputProcessorActor>(self, what.output_processor),
       actor_of<SchedulerActor>(self, what.scheduler));
}

void run(Self self, const SendLoss& what) {
  send(self, actor_of<RequestRouterActor>(self, what.router), what.message);
}

void run(Self self, const SendHealth& what) {
  send(self, actor_of<RequestRouterActor>(self, what.router), what.message);
}

void run(Self self, const SendRecord& what) {
  send(self, actor_of<NodeActor>(self, what.node), what.record);
}

void run(Self self, const SendRouter& what) {
  send(self, actor_of<NodeActor>(self, what.node), RouterReady{},
       ActorHandles{state(self).handles.get(what.router)});
}

void run(Self self, const SendEncoders& what) {
  send(self, actor_of<NodeActor>(self, what.node), what.message,
       state(self).handles.get_all(what.encoders));
}

void run(Self self, const WatchActor& what) {
  SupervisorState& supervisor = state(self);
  const auto actor = actor_of<caf::actor>(self, what.actor);
  self->monitor(actor);
  if (supervisor.start.on_spawned) supervisor.start.on_spawned(what.name, actor);
}

void run(Self self, const EndActor& what) {
  caf::anon_send_exit(actor_of<caf::actor>(self, what.actor),
                      what.at_once ? caf::exit_reason::kill : caf::exit_reason::user_shutdown);
}

void run(Self self, const ConfirmLater& what) {
  const SupervisorActor me = self;
  send_after(self, kConfirmDelay, me, what.loss);
}

void run(Self self, const AnswerStart& what) {
  SupervisorState& supervisor = state(self);
  if (!what.started.error) {
    EngineHandles& engine = *supervisor.engine;
    engine.request_defaults =
        request_defaults(supervisor.start.options, supervisor.sampling_defaults,
                         supervisor.answer_defaults, what.started.model);
    engine.router = actor_of<RequestRouterActor>(self, what.router);
  }
  supervisor.record.http_port = what.started.port;
  write_record(supervisor);
  if (supervisor.started.pending()) supervisor.started.deliver(what.started);
}

void run(Self self, const AnnounceRouter& what) {
  SupervisorState& supervisor = state(self);
  if (supervisor.start.on_router)
    supervisor.start.on_router(actor_of<RequestRouterActor>(self, what.router));
}

void run(Self self, const AnnounceFailure& what) {
  SupervisorState& supervisor = state(self);
  if (supervisor.start.on_failure) supervisor.start.on_failure(what.reason);
}

void run(Self self, const Quit& what) {
  SupervisorState& supervisor = state(self);
  if (supervisor.stopped.pending()) supervisor.stopped.deliver(Stopped{what.clean});
  self->quit();
}

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
    for (const Command& command : commands)
      std::visit([self](const auto& what) { run(self, what); }, command);
  }
}

}  // namespace troupe::supervisor
