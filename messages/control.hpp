#pragma once
// The Supervisor's vocabulary: start, watch, drain, stop.

#include <cstdint>
#include <optional>
#include <string>

#include "messages/error.hpp"
#include "messages/worker.hpp"

namespace troupe {

/// Frontend -> OutputProcessor: the outputs are for the sender. Answered before the first one.
struct Subscribe {
  std::uint32_t client_index = 0;
  bool operator==(const Subscribe&) const = default;
};
TROUPE_MESSAGE(Subscribe, client_index)

/// -> Supervisor: bring the system up. Answered with Started once requests can come.
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

/// -> Supervisor: refuse new requests, give running ones this long, abort the rest, then end every
/// actor, last spawned first.
struct Stop {
  double drain_timeout_s = 0;
  bool operator==(const Stop&) const = default;
};
TROUPE_MESSAGE(Stop, drain_timeout_s)

struct Stopped {
  bool clean = true;  ///< false: the engine had been given up before
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

/// Supervisor -> Frontend: refuse new requests; answered with Drained when none is left. Those that
/// run longer than the timeout are aborted.
struct Drain {
  double timeout_s = 0;
  bool operator==(const Drain&) const = default;
};
TROUPE_MESSAGE(Drain, timeout_s)

struct Drained {
  std::int32_t num_aborted = 0;
  bool operator==(const Drained&) const = default;
};
TROUPE_MESSAGE(Drained, num_aborted)

/// The Frontend to itself while it drains: the last request has been answered, or the time is up.
enum class DrainEvent : std::uint8_t { kIdle, kTimeout };
struct DrainProgress {
  DrainEvent event{};
  bool operator==(const DrainProgress&) const = default;
};
TROUPE_MESSAGE(DrainProgress, event)

/// The Frontend to itself: the time of the next line of statistics has come.
struct LogStats {
  bool operator==(const LogStats&) const = default;
};
TROUPE_MESSAGE(LogStats)

/// The Scheduler, or the Frontend, to itself: look again; the time of some request may be up, or
/// the KV connector may have news.
struct WakeUp {
  bool operator==(const WakeUp&) const = default;
};
TROUPE_MESSAGE(WakeUp)

/// Frontend -> Scheduler: forget cached content. Answered with CachesReset.
struct ResetCaches {
  bool prefix_cache = false;
  bool encoder_cache = false;
  /// Running requests give their blocks back first and are computed anew; else the prefix cache
  /// stays as it is while one of its blocks is in use.
  bool preempt_running = false;
  bool operator==(const ResetCaches&) const = default;
};
TROUPE_MESSAGE(ResetCaches, prefix_cache, encoder_cache, preempt_running)

struct CachesReset {
  bool ok = false;
  bool operator==(const CachesReset&) const = default;
};
TROUPE_MESSAGE(CachesReset, ok)

/// What a pause does with the requests in the engine. New ones wait in any case.
enum class PauseMode : std::uint8_t {
  kAbort,  ///< they end, with what they have
  kWait,   ///< they run to their end
  kKeep    ///< they stay as they are, and go on later
};

/// Frontend -> Scheduler: compute nothing more. Answered with PauseStatus when nothing runs.
struct PauseScheduler {
  PauseMode mode{};
  bool clear_caches = false;  ///< then; not with kKeep
  bool operator==(const PauseScheduler&) const = default;
};
TROUPE_MESSAGE(PauseScheduler, mode, clear_caches)

/// Frontend -> Scheduler: go on. Answered with PauseStatus.
struct ResumeScheduler {
  bool operator==(const ResumeScheduler&) const = default;
};
TROUPE_MESSAGE(ResumeScheduler)

/// Frontend -> Scheduler: is it paused, or about to be? Answered with PauseStatus.
struct AskPaused {
  bool operator==(const AskPaused&) const = default;
};
TROUPE_MESSAGE(AskPaused)

struct PauseStatus {
  bool paused = false;
  bool operator==(const PauseStatus&) const = default;
};
TROUPE_MESSAGE(PauseStatus, paused)

/// Supervisor -> Frontend: some actor of the engine has died, so the others end too. Requests wait
/// for the EngineReplaced that follows.
struct EngineLost {
  std::string reason;
  bool operator==(const EngineLost&) const = default;
};
TROUPE_MESSAGE(EngineLost, reason)

/// Supervisor -> Frontend, together with the handles of the new actors: none of the old ones is
/// left, and the workers remember nothing of their requests.
struct EngineReplaced {
  /// The old engine fell by itself (SIGSEGV, SIGABRT, a failed CHECK): one of its requests may be
  /// to blame. False: it was killed from outside, or its host is gone.
  bool crashed = false;
  bool operator==(const EngineReplaced&) const = default;
};
TROUPE_MESSAGE(EngineReplaced, crashed)

/// Supervisor -> Frontend: whether there is an engine, and if not, why. Not healthy: there will be
/// no other one, and whoever waits for it fails.
struct EngineHealth {
  bool healthy = true;
  std::string reason;
  bool operator==(const EngineHealth&) const = default;
};
TROUPE_MESSAGE(EngineHealth, healthy, reason)

}  // namespace troupe
