#pragma once
// Steps from an engine to the workers that other processes of its host run, and their answers back:
// one ring out, which all of them read, and one ring back for each.
//
// The engine's process makes the rings and keeps StepRings; each worker's process is told one
// WorkerRings, by whatever way, and opens its WorkerStepRings. Neither needs to wait for the other:
// steps that were sent before a worker opened its end wait in the ring. A group of workers that is
// put together anew gets new rings under a new incarnation.
//
// What is in a ring: the incarnation, then a WorkerCall or a WorkerAnswer in wire form, written
// straight into shared memory. A build reads only rings of a build with the same messages.

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

using WorkerCall = std::variant<JoinGroup, SchedulerOutput, GrammarOutput>;
using WorkerAnswer = std::variant<ModelRunnerOutput, StepFailed>;

struct StepRingsOptions {
  std::vector<std::int32_t> ranks;  ///< of the workers of this host
  std::uint64_t incarnation = 0;
  std::uint32_t num_chunks = 16;  ///< calls, or answers of one worker, that may wait
  std::uint64_t chunk_bytes = std::uint64_t{1} << 20;
};

/// The engine's end. send() belongs to one thread, receive(i) to one thread for each i, the rest to
/// any. At its end all rings are closed.
class StepRings {
 public:
  /// Errors: those of SharedMemoryRing::create.
  [[nodiscard]] static Result<std::unique_ptr<StepRings>> create(const StepRingsOptions& options);
  ~StepRings();
  StepRings(const StepRings&) = delete;
  StepRings& operator=(const StepRings&) = delete;

  [[nodiscard]] std::size_t num_workers() const noexcept { return answers_.size(); }
  [[nodiscard]] std::int32_t rank(std::size_t i) const noexcept { return ranks_[i]; }
  /// What the process of worker i is told.
  [[nodiscard]] WorkerRings worker(std::size_t i) const;

  /// To all workers. Errors: those of RingWriter::commit, with the ranks.
  [[nodiscard]] Result<void> send(const JoinGroup& join, Deadline deadline);
  [[nodiscard]] Result<void> send(const SchedulerOutput& step, Deadline deadline);
  [[nodiscard]] Result<void> send(const GrammarOutput& grammar, Deadline deadline);
  /// The next answer of worker i, with its rank; nothing if none came until the deadline. Errors:
  /// kAborted (closed, from either end), kUnavailable (its process has ended), kCorrupt; each names
  /// the rank.
  [[nodiscard]] Result<std::optional<WorkerAnswer>> receive(std::size_t i, Deadline deadline);

  /// Worker i is gone, whoever found out: nobody waits for it any more.
  void detach(std::size_t i) noexcept;
  /// Wakes everybody, here and there.
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

/// A worker's end. receive() belongs to one thread, send() to one, the rest to any.
class WorkerStepRings {
 public:
  /// Errors: those of SharedMemoryRing::open; kInvalidArgument if somebody is this worker already.
  [[nodiscard]] static Result<std::unique_ptr<WorkerStepRings>> open(const WorkerRings& rings);
  ~WorkerStepRings();
  WorkerStepRings(const WorkerStepRings&) = delete;
  WorkerStepRings& operator=(const WorkerStepRings&) = delete;

  [[nodiscard]] std::int32_t rank() const noexcept { return rank_; }
  /// The next call of this incarnation; nothing if none came until the deadline. Errors: kAborted
  /// (closed or detached), kUnavailable (the engine's process has ended), kCorrupt.
  [[nodiscard]] Result<std::optional<WorkerCall>> receive(Deadline deadline);
  /// Errors: those of RingWriter::commit.
  [[nodiscard]] Result<void> send(const ModelRunnerOutput& output, Deadline deadline);
  [[nodiscard]] Result<void> send(const StepFailed& failure, Deadline deadline);
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

/// What both ends must have in common: the version, and a digest of the schema of all that travels.
[[nodiscard]] const std::string& step_rings_build_id();

}  // namespace troupe
