#pragma once
// The messages of start-up, monitoring, draining and shutdown.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "messages/error.hpp"
#include "messages/request.hpp"
#include "messages/worker.hpp"

namespace troupe {

/// RequestRouter -> OutputProcessor: send outputs to the sender. Answered before the first output.
struct Subscribe {
  std::uint32_t client_index = 0;
  bool operator==(const Subscribe&) const = default;
};
TROUPE_MESSAGE(Subscribe, client_index)

/// -> Supervisor: start the system. Answered with Started when requests are accepted.
struct Start {
  bool operator==(const Start&) const = default;
};
TROUPE_MESSAGE(Start)

struct Started {
  ModelLoaded model;
  std::int32_t num_blocks = 0;
  std::uint16_t port = 0;      ///< of the HTTP server, if there is one
  std::optional<Error> error;  ///< nothing runs then
  bool operator==(const Started&) const = default;
};
TROUPE_MESSAGE(Started, model, num_blocks, port, error)

/// -> Supervisor: reject new requests, let running ones finish within the timeout, abort the rest,
/// then end all actors, last spawned first.
struct Stop {
  double drain_timeout_s = 0;
  bool retire = false;  ///< as in Drain, without a timeout
  bool operator==(const Stop&) const = default;
};
TROUPE_MESSAGE(Stop, drain_timeout_s, retire)

struct Stopped {
  bool clean = true;  ///< false: the engine had already failed
  bool operator==(const Stopped&) const = default;
};
TROUPE_MESSAGE(Stopped, clean)

/// Supervisor -> Frontend: open the port. Answered with Listening.
struct Listen {
  bool operator==(const Listen&) const = default;
};
TROUPE_MESSAGE(Listen)

struct Listening {
  std::uint16_t port = 0;
  std::optional<Error> error;
  bool operator==(const Listening&) const = default;
};
TROUPE_MESSAGE(Listening, port, error)

/// Supervisor -> Frontend, RequestRouter: reject new requests; answered with Drained when none is
/// left. Requests that run longer than the timeout are aborted.
struct Drain {
  double timeout_s = 0;
  /// Of the Frontend: another server accepts connections instead. This one still serves those that
  /// are open, and has drained when the last of them has ended, however long that takes.
  bool retire = false;
  bool operator==(const Drain&) const = default;
};
TROUPE_MESSAGE(Drain, timeout_s, retire)

struct Drained {
  std::int32_t num_aborted = 0;
  bool operator==(const Drained&) const = default;
};
TROUPE_MESSAGE(Drained, num_aborted)

/// Frontend and RequestRouter to themselves during a drain: the last request has finished, or the
/// timeout has passed.
enum class DrainEvent : std::uint8_t { kIdle, kTimeout };
struct DrainProgress {
  DrainEvent event{};
  bool operator==(const DrainProgress&) const = default;
};
TROUPE_MESSAGE(DrainProgress, event)

/// The Frontend to itself: log the periodic statistics.
struct LogStats {
  bool operator==(const LogStats&) const = default;
};
TROUPE_MESSAGE(LogStats)

/// Scheduler, RequestRouter and Frontend to themselves: check deadlines, and news of the KV
/// connector.
struct WakeUp {
  bool operator==(const WakeUp&) const = default;
};
TROUPE_MESSAGE(WakeUp)

/// Scheduler to itself, from a thread of the grammar compiler: a structured request's grammar is
/// compiled, or has failed to compile.
struct GrammarCompiled {
  RequestId id{};
  std::uint64_t sequence = 0;  ///< of the request: ids may come again
  bool operator==(const GrammarCompiled&) const = default;
};
TROUPE_MESSAGE(GrammarCompiled, id, sequence)

/// Scheduler to itself, from a thread of the grammar compiler: the masks of a step are filled.
struct GrammarFilled {
  std::uint64_t step = 0;
  bool operator==(const GrammarFilled&) const = default;
};
TROUPE_MESSAGE(GrammarFilled, step)

/// A client -> RequestRouter -> Schedulers, and InputProcessors: clear caches. Answered with
/// CachesReset.
struct ResetCaches {
  bool prefix_cache = false;
  bool encoder_cache = false;
  bool mm_cache = false;  ///< of processed images
  /// Preempt running requests first, so that they are recomputed; otherwise the prefix cache is not
  /// cleared while one of its blocks is in use.
  bool preempt_running = false;
  bool connector = false;  ///< with prefix_cache: also what the KV connector has stored
  bool operator==(const ResetCaches&) const = default;
};
TROUPE_MESSAGE(ResetCaches, prefix_cache, encoder_cache, mm_cache, preempt_running, connector)

struct CachesReset {
  bool ok = false;
  bool operator==(const CachesReset&) const = default;
};
TROUPE_MESSAGE(CachesReset, ok)

/// A client -> RequestRouter -> Schedulers: copy what the KV connector has stored to files of a
/// folder of each worker's host, or take such files in. Answered with CacheMoved when it is done.
struct MoveCache {
  bool is_import = false;
  std::string folder;
  bool operator==(const MoveCache&) const = default;
};
TROUPE_MESSAGE(MoveCache, is_import, folder)

struct CacheMoved {
  std::int64_t num_blocks = 0;  ///< of a rank
  std::optional<Error> error;
  bool operator==(const CacheMoved&) const = default;
};
TROUPE_MESSAGE(CacheMoved, num_blocks, error)

/// What a pause does with the requests in the engine. New requests always wait.
enum class PauseMode : std::uint8_t {
  kAbort,  ///< finish them with the output so far
  kWait,   ///< let them finish
  kKeep    ///< suspend them until the engine resumes
};

/// A client -> RequestRouter -> Schedulers: pause the engine. Answered with PauseStatus when no
/// request runs.
struct PauseScheduler {
  PauseMode mode{};
  bool clear_caches = false;  ///< after the pause; not with kKeep
  bool operator==(const PauseScheduler&) const = default;
};
TROUPE_MESSAGE(PauseScheduler, mode, clear_caches)

/// A client -> RequestRouter -> Schedulers: resume. Answered with PauseStatus.
struct ResumeScheduler {
  bool operator==(const ResumeScheduler&) const = default;
};
TROUPE_MESSAGE(ResumeScheduler)

/// A client -> RequestRouter -> Schedulers: whether the engine is paused or pausing. Answered with
/// PauseStatus.
struct AskPaused {
  bool operator==(const AskPaused&) const = default;
};
TROUPE_MESSAGE(AskPaused)

struct PauseStatus {
  bool paused = false;
  bool operator==(const PauseStatus&) const = default;
};
TROUPE_MESSAGE(PauseStatus, paused)

/// Why an actor or process that requests ran in has ended.
enum class LossCause : std::uint8_t {
  kOutside,  ///< stopped on request, unreachable, or dependent on what failed
  kKilled,   ///< its process died for a reason unknown here: killed by hand or by the OOM killer
  kCrashed,  ///< crashed by itself (SIGSEGV, SIGABRT, a failed CHECK)
};

/// Supervisor -> RequestRouter: the engine of this group has ended with all state of its workers.
/// Its requests are resubmitted to another group, or wait for the next EngineReady.
struct EngineLost {
  std::uint32_t group = 0;
  std::string reason;
  LossCause cause = LossCause::kOutside;  ///< one of its requests may be the cause
  bool returns = true;                    ///< a replacement is being started
  bool operator==(const EngineLost&) const = default;
};
TROUPE_MESSAGE(EngineLost, group, reason, cause, returns)

/// Supervisor -> RequestRouter, with the handles of its actors: this group has an engine. Answered
/// with EngineRefused if the RequestRouter has been told that this very engine is lost.
struct EngineReady {
  std::uint32_t group = 0;
  std::uint32_t incarnation = 0;
  bool operator==(const EngineReady&) const = default;
};
TROUPE_MESSAGE(EngineReady, group, incarnation)

/// RequestRouter -> Supervisor: the requests of this engine are resubmitted elsewhere, since an
/// earlier Supervisor has said EngineLost of it. It has to end.
struct EngineRefused {
  std::uint32_t group = 0;
  std::uint32_t incarnation = 0;
  bool operator==(const EngineRefused&) const = default;
};
TROUPE_MESSAGE(EngineRefused, group, incarnation)

/// How a client wants a request routed: its group, and the transfer of its KV.
struct Placement {
  std::optional<std::int32_t> data_parallel_rank;
  std::string session_id;  ///< requests of a session go to the same group; empty: no session
  std::string kv_transfer_params;  ///< as in EngineCoreRequest
  bool operator==(const Placement&) const = default;
};
TROUPE_MESSAGE(Placement, data_parallel_rank, session_id, kv_transfer_params)

/// A client -> RequestRouter -> InputProcessor: a request; its RequestOutputs go to the sender. The
/// client chooses the id, which must differ from those of its other live requests.
struct SubmitRequest {
  GenerateRequest request;
  Placement placement;
  bool operator==(const SubmitRequest&) const = default;
};
TROUPE_MESSAGE(SubmitRequest, request, placement)

/// A client -> RequestRouter: send no new requests to this group; running ones may finish within
/// the timeout, then they are resubmitted to other groups and the group ends. Answered with Status.
struct DrainGroup {
  std::uint32_t group = 0;
  double timeout_s = 0;
  bool operator==(const DrainGroup&) const = default;
};
TROUPE_MESSAGE(DrainGroup, group, timeout_s)

/// The RequestRouter to itself: the drain timeout of a group has passed.
struct GroupDrainTimeout {
  std::uint32_t group = 0;
  std::uint64_t drain = 0;  ///< which one it was
  bool operator==(const GroupDrainTimeout&) const = default;
};
TROUPE_MESSAGE(GroupDrainTimeout, group, drain)

/// RequestRouter -> Supervisor: end this group. Answered with Status.
struct EndGroup {
  std::uint32_t group = 0;
  bool operator==(const EndGroup&) const = default;
};
TROUPE_MESSAGE(EndGroup, group)

enum class GroupState : std::uint8_t {
  kAbsent,    ///< drained, given up, or optional and not yet joined by its nodes
  kStarting,  ///< also after a failure
  kServing
};

struct GroupStatus {
  GroupState state{};
  std::uint32_t incarnation = 0;
  bool operator==(const GroupStatus&) const = default;
};
TROUPE_MESSAGE(GroupStatus, state, incarnation)

struct NodeStatus {
  std::string name;  ///< empty: the Supervisor's own process
  std::string host;
  std::vector<std::int32_t> groups;
  bool joined = false;
  bool operator==(const NodeStatus&) const = default;
};
TROUPE_MESSAGE(NodeStatus, name, host, groups, joined)

/// A client -> RequestRouter -> Supervisor: state of nodes and groups. Answered with
/// TopologyStatus.
struct AskTopology {
  bool operator==(const AskTopology&) const = default;
};
TROUPE_MESSAGE(AskTopology)

struct TopologyStatus {
  std::vector<GroupStatus> groups;
  std::vector<NodeStatus> nodes;
  bool operator==(const TopologyStatus&) const = default;
};
TROUPE_MESSAGE(TopologyStatus, groups, nodes)

/// Frontend -> RequestRouter: an HTTP server registers as a client that also needs the engine's
/// state: RouterReport, and the RequestOutputs of every step for their statistics. Answered with
/// FrontendConnected.
struct ConnectFrontend {
  /// As the previous RequestRouter reported them.
  std::optional<AdapterList> adapters;
  bool operator==(const ConnectFrontend&) const = default;
};
TROUPE_MESSAGE(ConnectFrontend, adapters)

struct FrontendConnected {
  std::uint64_t keys_seed = 0;  ///< for the keys of its requests (RequestKeys)
  std::uint64_t key_stream = 0;
  bool healthy = true;                  ///< as in RouterReport
  std::optional<AdapterList> adapters;  ///< none: no engine has reported yet
  bool operator==(const FrontendConnected&) const = default;
};
TROUPE_MESSAGE(FrontendConnected, keys_seed, key_stream, healthy, adapters)

/// RequestRouter -> Frontend: state changes of the groups.
struct RouterReport {
  bool healthy = true;                      ///< some group serves
  std::optional<std::uint32_t> lost_group;  ///< whose engine has ended
  std::uint64_t num_resubmitted = 0;        ///< requests that were moved to another engine
  std::optional<AdapterList> adapters;      ///< all of them, if they have changed
  bool operator==(const RouterReport&) const = default;
};
TROUPE_MESSAGE(RouterReport, healthy, lost_group, num_resubmitted, adapters)

/// Supervisor -> the Frontend's node -> Frontend, with its handle: a new RequestRouter.
struct RouterReady {
  bool operator==(const RouterReady&) const = default;
};
TROUPE_MESSAGE(RouterReady)

/// Supervisor -> RequestRouter: whether there is an engine, and if not, why. Not healthy: no engine
/// will follow, and waiting requests fail.
struct EngineHealth {
  bool healthy = true;
  std::string reason;
  bool operator==(const EngineHealth&) const = default;
};
TROUPE_MESSAGE(EngineHealth, healthy, reason)

}  // namespace troupe
