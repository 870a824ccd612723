// The InputProcessor: distributes requests to its workers, which prepare them, and registers each
// with the OutputProcessor before it is sent to the Scheduler.
#include "runtime/processors/input_processor.hpp"

#include <unordered_map>
#include <utility>
#include <variant>

#include "actors/deadlines.hpp"
#include "actors/spawn.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/guard.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/memory.hpp"
#include "runtime/processors/final_output.hpp"
#include "runtime/scheduler/work_queue.hpp"

namespace troupe {
namespace {

/// The input and output of a worker. Owned by the InputProcessor while the worker is idle, and by
/// the worker from PrepareInput to its reply: the messages synchronise access.
struct InputSlot {
  std::variant<std::monostate, GenerateRequest, RenderRequest> request;
  std::shared_ptr<const std::atomic<bool>> cancelled;
  std::optional<Result<ProcessedRequest>> processed;  ///< of a GenerateRequest
  RenderReply rendered;                               ///< of a RenderRequest
};

/// Memory used by template and tokenizer for a prompt has been freed.
void note_processed(std::size_t num_prompt_bytes) {
  constexpr std::size_t kFactor = 8;
  note_freed_memory(kFactor * num_prompt_bytes);
}

void prepare(const InputProcessor& core, InputSlot& slot) {
  const InputContext context{
      .clock = ChatClock::now(),
      .limits = core.limits_of_work(slot.cancelled, std::chrono::steady_clock::now())};
  std::size_t num_prompt_bytes = 0;
  if (auto* const generate = std::get_if<GenerateRequest>(&slot.request)) {
    num_prompt_bytes = text_bytes(generate->prompt);
    auto thrown = guard([&] { slot.processed = core.process(std::move(*generate), context); });
    if (thrown) slot.processed = *std::move(thrown);
  } else {
    const auto& render = std::get<RenderRequest>(slot.request);
    num_prompt_bytes = text_bytes(render.prompt);
    auto thrown = guard([&] { slot.rendered = core.render(render, context); });
    if (thrown) slot.rendered = {.error = std::move(thrown)};
  }
  slot.request = {};
  note_processed(num_prompt_bytes);
}

InputWorkerActor::behavior_type input_worker_behavior(
    const std::shared_ptr<const InputProcessor>& core, const std::shared_ptr<InputSlot>& slot) {
  return {[=](const PrepareInput&) {
    prepare(*core, *slot);
    return Status{};
  }};
}

struct InputWorker {
  InputWorkerActor actor;
  std::shared_ptr<InputSlot> slot;
};

/// A job that waits for a worker, or is being processed by one.
struct InputJob {
  RequestId id{};
  std::variant<std::monostate, GenerateRequest, RenderRequest> request;  ///< while it waits
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
  RequestClientActor router;                          ///< of a GenerateRequest
  RequestOutput when_aborted;                         ///< of a GenerateRequest
  Placement placement;                                ///< of a GenerateRequest
  caf::typed_response_promise<RenderReply> rendered;  ///< of a RenderRequest
};

struct InputProcessorState {
  InputProcessorState() = default;
  ~InputProcessorState() {
    for (auto& [number, job] : jobs) *job.cancelled = true;
    for (const InputWorker& worker : workers)
      caf::anon_send_exit(worker.actor, caf::exit_reason::user_shutdown);
  }
  static inline const char* name = "input_processor";

  OutputProcessorActor output_processor;
  SchedulerActor scheduler;
  EncoderRouterActor encoder_router;  ///< null: the workers encode
  std::vector<InputWorker> workers;
  std::optional<WorkQueue> queue;
  std::uint64_t num_jobs = 0;
  std::unordered_map<std::uint64_t, InputJob> jobs;  ///< without aborted ones
  std::unordered_map<RequestId, std::uint64_t> numbers;
  /// Prepared, but not yet registered with the OutputProcessor, or not yet encoded. An abort
  /// removes a request.
  std::unordered_map<RequestId, EngineCoreRequests> registering;
};

using Self = InputProcessorActor::stateful_pointer<InputProcessorState>;

void end(Self self, const RequestClientActor& router, RequestOutput output) {
  RequestOutputs outputs;
  outputs.outputs.push_back(std::move(output));
  send(self, router, std::move(outputs));
}

/// It is registered, and its items are encoded.
void submit(Self self, RequestId id) {
  auto ready = state(self).registering.extract(id);
  if (ready.empty()) return;  // aborted meanwhile
  send(self, state(self).scheduler, std::move(ready.mapped()));
}

/// Has the items of a registered request encoded, where there are encoders.
void encode(Self self, RequestId id) {
  const InputProcessorState& processor = state(self);
  const auto ready = processor.registering.find(id);
  if (ready == processor.registering.end()) return;
  const auto& samples = ready->second.samples;
  if (!processor.encoder_router || samples.empty() || samples.front().mm_features.empty())
    return submit(self, id);
  ask(self, processor.encoder_router, kEncodeDeadline, EncodeItems{samples.front().mm_features})
      .then([=](const Status&) { submit(self, id); },
            [=](const caf::error& error) {
              log_warning("the items of a request are left to the workers", kv("id", value(id)),
                          kv("error", to_text(error, self->system())));
              submit(self, id);
            });
}

void start(Self self, const InputJob& job, Result<ProcessedRequest> processed) {
  if (!processed.ok()) {
    return end(self, job.router,
               {.id = job.id, .finished = true, .error = std::move(processed).error()});
  }
  const RequestId id = job.id;
  for (EngineCoreRequest& sample : processed->samples) {
    sample.session_id = job.placement.session_id;
    sample.kv_transfer_params = job.placement.kv_transfer_params;
  }
  state(self).registering[id] = EngineCoreRequests{std::move(processed->samples)};
  ask(self, state(self).output_processor, std::move(processed->output))
      .then([=](const Status&) { encode(self, id); },
            [=](const caf::error& error) {
              // The engine ends with it; the RequestRouter resubmits the request.
              state(self).registering.erase(id);
              log_warning("the output processor has ended", kv("id", value(id)),
                          kv("error", to_text(error, self->system())));
            });
}

std::optional<InputJob> take_job(InputProcessorState& processor, std::uint64_t number) {
  auto found = processor.jobs.extract(number);
  if (found.empty()) return std::nullopt;
  processor.numbers.erase(found.mapped().id);
  return std::move(found.mapped());
}

void give_work(Self self);

void take_work(Self self, std::size_t worker) {
  InputProcessorState& processor = state(self);
  InputSlot& slot = *processor.workers[worker].slot;
  auto processed = std::exchange(slot.processed, std::nullopt);
  RenderReply rendered = std::exchange(slot.rendered, {});
  auto job = take_job(processor, processor.queue->finish(worker, now_seconds()));
  if (!job) {
    // aborted meanwhile
  } else if (processed) {
    start(self, *job, *std::move(processed));
  } else {
    job->rendered.deliver(std::move(rendered));
  }
  give_work(self);
}

void give_work(Self self) {
  InputProcessorState& processor = state(self);
  while (const auto next = processor.queue->start_next(now_seconds())) {
    const InputWorker& worker = processor.workers[next->worker];
    InputJob& job = processor.jobs.at(next->number);
    worker.slot->request = std::exchange(job.request, {});
    worker.slot->cancelled = job.cancelled;
    ask(self, worker.actor, PrepareInput{})
        .then([self, place = next->worker](const Status&) { take_work(self, place); },
              [self](const caf::error& error) { self->quit(error); });
  }
}

template <class Request>
InputJob& add_job(InputProcessorState& processor, Request& request) {
  const std::uint64_t number = processor.num_jobs++;
  processor.queue->add({number, request.tenant, request.client, input_bytes(request)},
                       now_seconds());
  InputJob& job = processor.jobs[number];
  job.id = request.id;
  if (value(job.id) != 0) processor.numbers.emplace(job.id, number);
  job.request = std::move(request);
  return job;
}

/// False: it is unknown here. A worker that processes it stops soon.
bool abort_job(Self self, RequestId id) {
  InputProcessorState& processor = state(self);
  const auto found = processor.numbers.find(id);
  if (found == processor.numbers.end()) return false;
  const std::uint64_t number = found->second;
  InputJob job = *take_job(processor, number);
  *job.cancelled = true;
  processor.queue->remove(number);
  if (job.router) {
    end(self, job.router, std::move(job.when_aborted));
  } else {
    job.rendered.deliver(
        RenderReply{.error = Error{ErrorCode::kAborted, "the request was aborted", ""}});
  }
  return true;
}

InputProcessorActor::behavior_type input_processor_behavior(
    Self self, const std::shared_ptr<const InputProcessor>& core, std::size_t num_workers,
    const OutputProcessorActor& output_processor, const SchedulerActor& scheduler,
    const EncoderRouterActor& encoder_router) {
  InputProcessorState& processor = state(self);
  processor.encoder_router = encoder_router;
  processor.output_processor = output_processor;
  processor.scheduler = scheduler;
  processor.queue.emplace(num_workers);
  for (std::size_t i = 0; i < num_workers; ++i) {
    const auto slot = std::make_shared<InputSlot>();
    processor.workers.push_back(
        {self->system().spawn<caf::detached>(input_worker_behavior, core, slot), slot});
  }
  return {
      [self](SubmitRequest& submission) {
        GenerateRequest& request = submission.request;
        const auto router = caf::actor_cast<RequestClientActor>(self->current_sender());
        const RequestId id = request.id;
        const auto thrown = guard([&] {
          RequestOutput when_aborted = final_output(request, FinishReason::kAbort);
          InputJob& job = add_job(state(self), request);
          job.router = router;
          job.placement = std::move(submission.placement);
          job.when_aborted = std::move(when_aborted);
        });
        if (thrown) return end(self, router, {.id = id, .finished = true, .error = thrown});
        give_work(self);
      },
      [self](const AbortRequests& abort) {
        AbortRequests behind;
        for (const RequestId id : abort.ids) {
          state(self).registering.erase(id);
          if (!abort_job(self, id)) behind.ids.push_back(id);
        }
        if (behind.ids.empty()) return;
        send(self, state(self).output_processor, behind);
        send(self, state(self).scheduler, behind);
      },
      [self](RenderRequest& request) -> caf::result<RenderReply> {
        InputJob& job = add_job(state(self), request);
        auto promise = self->make_response_promise<RenderReply>();
        job.rendered = promise;
        give_work(self);
        return promise;
      },
  };
}

}  // namespace

InputProcessorActor spawn_input_processor(caf::actor_system& system,
                                          std::shared_ptr<const InputProcessor> core,
                                          std::size_t num_workers,
                                          OutputProcessorActor output_processor,
                                          SchedulerActor scheduler,
                                          EncoderRouterActor encoder_router) {
  return system.spawn<caf::detached>(input_processor_behavior, std::move(core), num_workers,
                                     std::move(output_processor), std::move(scheduler),
                                     std::move(encoder_router));
}

}  // namespace troupe
