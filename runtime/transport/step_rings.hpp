#pragma once
// Steps from an engine to workers in other processes of its host, and their replies: one ring out,
// read by all workers, and one ring back from each.
//
// The engine's process creates the rings and owns StepRings; each worker's process receives a
// WorkerRings message, and opens its WorkerStepRings. They start independently: steps that are sent
// before a worker opens its end wait in the ring. A restarted group of workers gets new rings with
// a new incarnation.
//
// A ring contains the incarnation, then a WorkerCall or a WorkerAnswer in wire format, written
// directly to shared memory. A build only reads rings of a build with the same messages.

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "messages/model_runner_output.hpp"
#include "messages/scheduler_output.hpp"
#include "messages/worker.hpp"
#include "runtime/transport/shared_memory_ring.hpp"

namespace troupe {

using WorkerCall = std::variant<JoinGroup, SchedulerOutput, GrammarOutput, WorkerRpc>;
using WorkerAnswer = std::variant<ModelRunnerOutput, StepFailed, LoadProgress, WorkerRpcReply>;

struct StepRingsOptions {
  std::vector<std::int32_t> ranks;  ///< of the workers on this host
  std::uint64_t incarnation = 0;
  std::uint32_t num_chunks = 16;  ///< calls, or replies of one worker, that may be queued
  std::uint64_t chunk_bytes = std::uint64_t{1} << 20;
};

/// The engine's end. send() is called by one thread, receive(i) by one thread for each i, the rest
/// by any. The destructor closes all rings.
class StepRings {
 public:
  /// Errors: those of SharedMemoryRing::create.
  [[nodiscard]] static Result<std::unique_ptr<StepRings>> create(const StepRingsOptions& options);
  ~StepRings();
  StepRings(const StepRings&) = delete;
  StepRings& operator=(const StepRings&) = delete;

  [[nodiscard]] std::size_t num_workers() const noexcept { return answers_.size(); }
  [[nodiscard]] std::int32_t rank(std::size_t i) const noexcept { return ranks_[i]; }
  /// The message to the process of worker i.
  [[nodiscard]] WorkerRings worker(std::size_t i) const;

  /// Sends to all workers. Errors: those of RingWriter::commit, with the ranks.
  [[nodiscard]] Result<void> send(const JoinGroup& join, Deadline deadline);
  [[nodiscard]] Result<void> send(const SchedulerOutput& step, Deadline deadline);
  [[nodiscard]] Result<void> send(const GrammarOutput& grammar, Deadline deadline);
  [[nodiscard]] Result<void> send(const WorkerRpc& rpc, Deadline deadline);
  /// The next reply of worker i, with its rank; nullopt if none arrived before the deadline.
  /// Errors: kAborted (closed by either end), kUnavailable (its process has ended), kCorrupt; each
  /// names the rank.
  [[nodiscard]] Result<std::optional<WorkerAnswer>> receive(std::size_t i, Deadline deadline);

  /// Worker i has ended: no longer wait for it.
  void detach(std::size_t i) noexcept;
  /// Closes all rings, and wakes all threads waiting at either end.
  void close() noexcept;

 private:
  StepRings() = default;
  template <class Call>
  [[nodiscard]] Result<void> send_to_all(const Call& call, Deadline deadline);

  std::uint64_t incarnation_ = 0;
  std::vector<std::int32_t> ranks_;
  std::shared_ptr<SharedMemoryRing> calls_;
  std::unique_ptr<RingWriter> writer_;
  std::vector<std::shared_ptr<SharedMemoryRing>> answers_;
  std::vector<std::unique_ptr<RingReader>> readers_;
};

/// A worker's end. receive() is called by one thread, send() by one, the rest by any.
class WorkerStepRings {
 public:
  /// Errors: those of SharedMemoryRing::open; kInvalidArgument if this worker is already attached.
  [[nodiscard]] static Result<std::unique_ptr<WorkerStepRings>> open(const WorkerRings& rings);
  ~WorkerStepRings();
  WorkerStepRings(const WorkerStepRings&) = delete;
  WorkerStepRings& operator=(const WorkerStepRings&) = delete;

  [[nodiscard]] std::int32_t rank() const noexcept { return rank_; }
  /// The next call of this incarnation; nullopt if none arrived before the deadline. Errors:
  /// kAborted (closed or detached), kUnavailable (the engine's process has ended), kCorrupt.
  [[nodiscard]] Result<std::optional<WorkerCall>> receive(Deadline deadline);
  /// Errors: those of RingWriter::commit.
  [[nodiscard]] Result<void> send(const ModelRunnerOutput& output, Deadline deadline);
  [[nodiscard]] Result<void> send(const StepFailed& failure, Deadline deadline);
  [[nodiscard]] Result<void> send(const LoadProgress& progress, Deadline deadline);
  [[nodiscard]] Result<void> send(const WorkerRpcReply& reply, Deadline deadline);
  void close() noexcept;

 private:
  WorkerStepRings() = default;

  std::int32_t rank_ = 0;
  std::uint64_t incarnation_ = 0;
  std::uint32_t reader_index_ = 0;
  std::shared_ptr<SharedMemoryRing> calls_;
  std::unique_ptr<RingReader> reader_;
  std::shared_ptr<SharedMemoryRing> answers_;
  std::unique_ptr<RingWriter> writer_;
};

/// Must be the same at both ends: the version, and a digest of the schema of all messages.
[[nodiscard]] const std::string& step_rings_build_id();

}  // namespace troupe
