// The Encoder: runs the model's vision encoder apart from the workers. Its outputs lie in the
// store of the EC connector, where the workers find them.
#include <cstring>
#include <deque>
#include <utility>

#include "actors/deadlines.hpp"
#include "actors/exceptions.hpp"
#include "actors/spawn.hpp"
#include "messages/encoder_input.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"
#include "runtime/ec_transfer/factory.hpp"
#include "runtime/ec_transfer/output_store.hpp"
#include "runtime/worker/encoder_runner.hpp"

namespace troupe {
namespace encoder {
namespace {

/// What an Encoder and its worker share: the store is thread-safe, and there once LoadEncoder has
/// been answered.
struct EncoderStore {
  std::shared_ptr<OutputStore> store;
  std::string key;
};

// ---- The worker --------------------------------------------------------------------------------

struct EncoderWorkerState {
  EncoderWorkerState() = default;
  static inline const char* name = "encoder_worker";
  std::unique_ptr<EncoderRunner> runner;
};

using WorkerSelf = EncoderWorkerActor::stateful_pointer<EncoderWorkerState>;

Result<void> load_encoder(WorkerSelf self, const EncoderConfig& config, EncoderStore& shared) {
  ASSIGN_OR_RETURN(const ECConnectorKind* const kind, find_ec_connector(config.connector));
  CHECK(kind->open_store != nullptr, config.connector.connector);  // see check_encoders
  ASSIGN_OR_RETURN(state(self).runner, EncoderRunner::load(config.worker));
  shared.key = state(self).runner->key();
  ASSIGN_OR_RETURN(shared.store,
                   kind->open_store({.config = config.connector, .encoder_key = shared.key}));
  return {};
}

Result<void> encode_item(EncoderRunner& runner, const EncoderStore& shared,
                         const MultiModalFeature& item) {
  ASSIGN_OR_RETURN(const std::vector<float> values, runner.encode(item));
  RETURN_IF_ERROR(runner.check_health());
  return shared.store->save(
      item.identifier, {.num_rows = num_embeds(item), .hidden_size = runner.hidden_size()}, values);
}

EncoderWorkerActor::behavior_type encoder_worker_behavior(
    WorkerSelf self, const EncoderConfig& config, const std::shared_ptr<WorkerProgress>& progress,
    const std::shared_ptr<EncoderStore>& shared) {
  return {
      [=](const LoadEncoder&) {
        const auto loaded = load_encoder(self, config, *shared);
        return Status{loaded.ok() ? std::nullopt : std::optional(loaded.error())};
      },
      [=](const EncodeItem& what) {
        EncoderRunner& runner = *state(self).runner;
        progress->busy_since_ns = steady_ns();
        const auto encoded = encode_item(runner, *shared, what.item);
        progress->busy_since_ns = 0;
        // Weights that are gone do not come back: the Supervisor starts another one.
        if (const auto health = runner.check_health(); !health.ok())
          self->quit(exit_reason_of(health.error().message));
        return ItemEncoded{.error = encoded.ok() ? std::nullopt : std::optional(encoded.error())};
      },
  };
}

// ---- The Encoder -------------------------------------------------------------------------------

struct EncodeJob {
  EncodeItem what;
  caf::typed_response_promise<ItemEncoded> promise;
};

struct EncoderState {
  EncoderState() = default;
  static inline const char* name = "encoder";

  EncoderWorkerActor worker;
  std::shared_ptr<EncoderStore> shared;
  std::deque<EncodeJob> jobs;  ///< the first one is the worker's
};

using Self = EncoderActor::stateful_pointer<EncoderState>;

void start_next(Self self);

/// Of the first job.
void finish(Self self, ItemEncoded encoded) {
  EncoderState& encoder = state(self);
  if (encoded.error)
    log_warning("item not encoded", kv("identifier", encoder.jobs.front().what.item.identifier),
                kv("error", encoded.error->message));
  encoder.jobs.front().promise.deliver(std::move(encoded));
  encoder.jobs.pop_front();
  start_next(self);
}

void start_next(Self self) {
  EncoderState& encoder = state(self);
  if (encoder.jobs.empty()) return;
  const MultiModalFeature& item = encoder.jobs.front().what.item;
  // Another request may have brought it meanwhile.
  if (encoder.shared->store->has(item.identifier)) return finish(self, {});
  ask(self, encoder.worker, kLoadDeadline, encoder.jobs.front().what)
      .then([self](ItemEncoded& encoded) { finish(self, std::move(encoded)); },
            [self](const caf::error& error) { self->quit(error); });
}

EncoderOutputFound find_output(const EncoderStore& shared, const FindEncoderOutput& question) {
  if (question.encoder_key != shared.key) return {};
  if (question.num_rows == 0) return {.found = shared.store->has(question.identifier)};
  const auto loaded =
      shared.store->load(question.identifier, {question.num_rows, question.hidden_size});
  if (!loaded.ok()) return {};
  auto bytes = std::make_shared<std::vector<char>>(loaded->values.size_bytes());
  std::memcpy(bytes->data(), loaded->values.data(), bytes->size());
  return {.found = true, .values = std::move(bytes)};
}

EncoderActor::behavior_type encoder_behavior(Self self, const EncoderWorkerActor& worker,
                                             const std::shared_ptr<EncoderStore>& shared) {
  state(self).worker = worker;
  state(self).shared = shared;
  self->link_to(worker);
  return {
      [self](EncodeItem& what) -> caf::result<ItemEncoded> {
        EncoderState& encoder = state(self);
        if (encoder.shared->store->has(what.item.identifier)) return ItemEncoded{};
        if (what.item.data == nullptr) return ItemEncoded{.needs_data = true};
        auto promise = self->make_response_promise<ItemEncoded>();
        encoder.jobs.push_back({std::move(what), promise});
        if (encoder.jobs.size() == 1) start_next(self);
        return promise;
      },
      [self](const FindEncoderOutput& question) {
        return find_output(*state(self).shared, question);
      },
  };
}

}  // namespace
}  // namespace encoder

EncoderHandles spawn_encoder(caf::actor_system& system, const EncoderConfig& config,
                             std::shared_ptr<WorkerProgress> progress) {
  const auto shared = std::make_shared<encoder::EncoderStore>();
  EncoderHandles handles;
  handles.worker = system.spawn<caf::detached>(encoder::encoder_worker_behavior, config,
                                               std::move(progress), shared);
  // Detached: stores may lie in files.
  handles.encoder = system.spawn<caf::detached>(encoder::encoder_behavior, handles.worker, shared);
  return handles;
}

}  // namespace troupe
