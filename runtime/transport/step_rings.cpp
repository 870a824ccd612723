#include "runtime/transport/step_rings.hpp"

#include <string>
#include <utility>

#include "messages/schema.hpp"
#include "messages/wire.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"

namespace troupe {
namespace {

template <class Variant, class Message, std::size_t i = 0>
constexpr std::uint8_t index_in() {
  if constexpr (std::is_same_v<std::variant_alternative_t<i, Variant>, Message>)
    return i;
  else
    return index_in<Variant, Message, i + 1>();
}

/// Writes `message` as wire::Writer writes a Variant that holds it.
template <class Variant, class Message>
Result<void> send_as(RingWriter& ring, std::uint64_t incarnation, const Message& message,
                     Deadline deadline) {
  ring.begin(deadline);
  wire::Writer writer(ring);
  writer.put(incarnation);
  writer.put(index_in<Variant, Message>());
  writer.put(message);
  return ring.commit();
}

/// Skips messages of other incarnations.
template <class Variant>
Result<std::optional<Variant>> receive_as(RingReader& ring, std::uint64_t incarnation,
                                          Deadline deadline) {
  for (;;) {
    std::optional<Variant> message;
    std::uint64_t theirs = 0;
    bool intact = false;
    auto read = ring.read(deadline, [&](std::span<const char> bytes) {
      wire::Reader reader(bytes.data(), bytes.size());
      reader.get(theirs);
      if (reader.ok() && theirs == incarnation) reader.get(message.emplace());
      intact = reader.ok() && (theirs != incarnation || reader.done());
    });
    if (!read.ok()) return std::move(read).error();
    if (!*read) return std::optional<Variant>{};
    if (!intact) return Error{ErrorCode::kCorrupt, "the ring contains an invalid message"};
    if (message) return message;
    log_debug("message of another incarnation dropped", kv("incarnation", theirs),
              kv("expected", incarnation));
  }
}

}  // namespace

const std::string& step_rings_build_id() {
  static const std::string id = [] {
    const std::string schema = schema_text<WorkerCall, WorkerAnswer>();
    return "troupe " TROUPE_VERSION ", messages " + to_hex(xxh3_128(schema)).substr(0, 16);
  }();
  return id;
}

Result<std::unique_ptr<StepRings>> StepRings::create(const StepRingsOptions& options) {
  std::unique_ptr<StepRings> rings(new StepRings);
  rings->incarnation_ = options.incarnation;
  rings->ranks_ = options.ranks;
  RingOptions ring{.num_readers = static_cast<std::uint32_t>(options.ranks.size()),
                   .num_chunks = options.num_chunks,
                   .chunk_bytes = options.chunk_bytes,
                   .build_id = step_rings_build_id()};
  const int spins = default_ring_spins(ring.num_readers);
  ASSIGN_OR_RETURN(rings->calls_, SharedMemoryRing::create(ring));
  ASSIGN_OR_RETURN(rings->writer_, RingWriter::attach(rings->calls_, spins));
  ring.num_readers = 1;
  for (std::size_t i = 0; i < options.ranks.size(); ++i) {
    ASSIGN_OR_RETURN(auto answers, SharedMemoryRing::create(ring));
    ASSIGN_OR_RETURN(auto reader, RingReader::attach(answers, 0, spins));
    rings->answers_.push_back(std::move(answers));
    rings->readers_.push_back(std::move(reader));
  }
  return rings;
}

StepRings::~StepRings() { close(); }

WorkerRings StepRings::worker(std::size_t i) const {
  return {.calls = calls_->name(),
          .reader = static_cast<std::uint32_t>(i),
          .answers = answers_[i]->name(),
          .rank = ranks_[i],
          .incarnation = incarnation_};
}

template <class Call>
Result<void> StepRings::send_to_all(const Call& call, Deadline deadline) {
  auto sent = send_as<WorkerCall>(*writer_, incarnation_, call, deadline);
  if (sent.ok()) return sent;
  Error error = std::move(sent).error();
  std::string ranks;
  for (std::size_t i = 0; i < num_workers(); ++i) {
    ranks += ranks.empty() ? "" : ", ";
    ranks += std::to_string(ranks_[i]);
    if (calls_->is_detached(static_cast<std::uint32_t>(i))) ranks += " (gone)";
  }
  error.message = "workers of rank " + ranks + ": " + error.message;
  return error;
}
Result<void> StepRings::send(const JoinGroup& join, Deadline deadline) {
  return send_to_all(join, deadline);
}
Result<void> StepRings::send(const SchedulerOutput& step, Deadline deadline) {
  return send_to_all(step, deadline);
}
Result<void> StepRings::send(const GrammarOutput& grammar, Deadline deadline) {
  return send_to_all(grammar, deadline);
}
Result<void> StepRings::send(const WorkerRpc& rpc, Deadline deadline) {
  return send_to_all(rpc, deadline);
}

Result<std::optional<WorkerAnswer>> StepRings::receive(std::size_t i, Deadline deadline) {
  auto answer = receive_as<WorkerAnswer>(*readers_[i], incarnation_, deadline);
  if (!answer.ok()) {
    Error error = std::move(answer).error();
    error.message = "worker of rank " + std::to_string(ranks_[i]) + ": " + error.message;
    return error;
  }
  if (*answer) std::visit([&](auto& message) { message.rank = ranks_[i]; }, **answer);
  return answer;
}

void StepRings::detach(std::size_t i) noexcept {
  calls_->detach_reader(static_cast<std::uint32_t>(i));
  answers_[i]->close();
}

void StepRings::close() noexcept {
  if (calls_) calls_->close();
  for (const auto& answers : answers_) answers->close();
}

Result<std::unique_ptr<WorkerStepRings>> WorkerStepRings::open(const WorkerRings& names) {
  std::unique_ptr<WorkerStepRings> rings(new WorkerStepRings);
  rings->rank_ = names.rank;
  rings->incarnation_ = names.incarnation;
  rings->reader_index_ = names.reader;
  ASSIGN_OR_RETURN(rings->calls_, SharedMemoryRing::open(names.calls, step_rings_build_id()));
  ASSIGN_OR_RETURN(rings->answers_, SharedMemoryRing::open(names.answers, step_rings_build_id()));
  const int spins = default_ring_spins(rings->calls_->num_readers());
  ASSIGN_OR_RETURN(rings->reader_, RingReader::attach(rings->calls_, names.reader, spins));
  ASSIGN_OR_RETURN(rings->writer_, RingWriter::attach(rings->answers_, spins));
  return rings;
}

WorkerStepRings::~WorkerStepRings() { close(); }

Result<std::optional<WorkerCall>> WorkerStepRings::receive(Deadline deadline) {
  return receive_as<WorkerCall>(*reader_, incarnation_, deadline);
}

Result<void> WorkerStepRings::send(const ModelRunnerOutput& output, Deadline deadline) {
  return send_as<WorkerAnswer>(*writer_, incarnation_, output, deadline);
}
Result<void> WorkerStepRings::send(const StepFailed& failure, Deadline deadline) {
  return send_as<WorkerAnswer>(*writer_, incarnation_, failure, deadline);
}

Result<void> WorkerStepRings::send(const LoadProgress& progress, Deadline deadline) {
  return send_as<WorkerAnswer>(*writer_, incarnation_, progress, deadline);
}

Result<void> WorkerStepRings::send(const WorkerRpcReply& reply, Deadline deadline) {
  return send_as<WorkerAnswer>(*writer_, incarnation_, reply, deadline);
}

void WorkerStepRings::close() noexcept {
  if (reader_) calls_->detach_reader(reader_index_);
  if (writer_) answers_->close();
}

}  // namespace troupe
