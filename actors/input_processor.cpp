// The InputProcessor: distributes requests to its workers, which prepare them, and registers each
// with the OutputProcessor before it is sent to the Scheduler.
#include "runtime/processors/input_processor.hpp"

#include <deque>
#include <unordered_map>
#include <utility>
#include <variant>

#include "actors/deadlines.hpp"
#include "actors/input_worker.hpp"
#include "actors/spawn.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/guard.hpp"
#include "runtime/base/log.hpp"
#include "runtime/multimodal/processor_cache.hpp"
#include "runtime/processors/final_output.hpp"
#include "runtime/scheduler/work_queue.hpp"

namespace troupe {
namespace input_processor {
namespace {

/// Requests whose media are fetched at once, each on threads of its own: hosts that do not answer
/// keep no worker. The others wait.
constexpr std::size_t kMaxFetchingJobs = 64;

struct InputWorker {
  InputWorkerActor actor;
  std::shared_ptr<InputSlot> slot;
};

/// A job that waits for a worker or for its files, or is being processed by one.
struct InputJob {
  RequestId id{};
  /// It was prepared before, and registered with the OutputProcessor; now its items need data.
  bool is_again = false;
  InputRequest request;  ///< while it waits
  RemoteMedia remote;    ///< while it waits
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
  std::deque<std::uint64_t> to_fetch;  ///< jobs, the aborted ones too
  std::size_t num_fetching = 0;        ///< jobs whose files are being fetched
  /// Prepared, but not yet registered with the OutputProcessor, or not yet encoded, or not yet
  /// taken by the Scheduler. An abort removes a request.
  struct Prepared {
    EngineCoreRequests requests;    ///< moved to the Scheduler in the end
    std::optional<InputJob> again;  ///< if items have no data: what to do if it is missing
  };
  std::unordered_map<RequestId, Prepared> registering;
  std::shared_ptr<const InputProcessor> core;
};

using Self = InputProcessorActor::stateful_pointer<InputProcessorState>;

void end(Self self, const RequestClientActor& router, RequestOutput output) {
  RequestOutputs outputs;
  outputs.outputs.push_back(std::move(output));
  send(self, router, std::move(outputs));
}

void add_again(Self self, InputJob job);

/// It is registered, and its items are encoded.
void submit(Self self, RequestId id) {
  InputProcessorState& processor = state(self);
  const auto ready = processor.registering.find(id);
  if (ready == processor.registering.end()) return;  // aborted meanwhile
  EngineCoreRequests requests = std::move(ready->second.requests);
  if (!ready->second.again) {
    processor.registering.erase(ready);
    return send(self, processor.scheduler, std::move(requests));
  }
  ask(self, processor.scheduler, CachedItemRequests{std::move(requests.samples)})
      .then(
          [=](const ItemsMissing& missing) {
            auto taken = state(self).registering.extract(id);
            if (missing.identifiers.empty()) return;
            state(self).core->processor_cache()->forget(missing.identifiers);
            if (taken.empty()) return;  // aborted meanwhile
            log_debug("items are not in the engine's cache: they are sent again",
                      kv("id", value(id)), kv("items", missing.identifiers.size()));
            add_again(self, *std::move(taken.mapped().again));
          },
          [=](const caf::error& error) {
            // The engine ends with it; the RequestRouter resubmits the request.
            state(self).registering.erase(id);
            log_warning("the scheduler has ended", kv("id", value(id)),
                        kv("error", to_text(error, self->system())));
          });
}

/// Has the items of a registered request encoded, where there are encoders.
void encode(Self self, RequestId id) {
  const InputProcessorState& processor = state(self);
  const auto ready = processor.registering.find(id);
  if (ready == processor.registering.end()) return;
  const auto& samples = ready->second.requests.samples;
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

/// `again`: with `job`, what to do if the engine's cache lacks items; or nothing.
void start(Self self, InputJob job, Result<ProcessedRequest> processed, InputRequest again) {
  if (!processed.ok()) {
    if (job.is_again) send(self, state(self).output_processor, AbortRequests{{job.id}});
    return end(self, job.router,
               {.id = job.id, .finished = true, .error = std::move(processed).error()});
  }
  const RequestId id = job.id;
  for (EngineCoreRequest& sample : processed->samples) {
    sample.session_id = job.placement.session_id;
    sample.kv_transfer_params = job.placement.kv_transfer_params;
  }
  auto& prepared = state(self).registering[id];
  prepared.requests.samples = std::move(processed->samples);
  prepared.again.reset();
  if (job.is_again) return submit(self, id);
  if (!std::holds_alternative<std::monostate>(again)) {
    job.request = std::move(again);
    prepared.again = std::move(job);
  }
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

/// The job waits for a worker.
void enqueue(InputProcessorState& processor, std::uint64_t number, const InputRequest& request) {
  const auto add = [&](const auto& each) {
    processor.queue->add({number, each.tenant, each.client, input_bytes(each)}, now_seconds());
  };
  if (const auto* const generate = std::get_if<GenerateRequest>(&request))
    add(*generate);
  else
    add(std::get<RenderRequest>(request));
}

InputJob& add_job(InputProcessorState& processor, std::uint64_t number, InputJob job) {
  if (value(job.id) != 0) processor.numbers.emplace(job.id, number);
  return processor.jobs[number] = std::move(job);
}

void start_fetches(Self self);

void take_files(Self self, std::uint64_t number, FetchSlot& slot) {
  InputProcessorState& processor = state(self);
  --processor.num_fetching;
  if (const auto job = processor.jobs.find(number); job != processor.jobs.end()) {
    job->second.remote = {.wanted = {}, .files = std::move(slot.files)};
    enqueue(processor, number, job->second.request);
    give_work(self);
  }
  start_fetches(self);
}

void start_fetches(Self self) {
  InputProcessorState& processor = state(self);
  while (processor.num_fetching < kMaxFetchingJobs && !processor.to_fetch.empty()) {
    const std::uint64_t number = processor.to_fetch.front();
    processor.to_fetch.pop_front();
    const auto job = processor.jobs.find(number);
    if (job == processor.jobs.end()) continue;
    const auto slot = std::make_shared<FetchSlot>(FetchSlot{
        std::move(job->second.remote.wanted),
        processor.core->limits_of_work(job->second.cancelled, std::chrono::steady_clock::now()),
        {}});
    ++processor.num_fetching;
    const InputWorkerActor actor = spawn_fetcher(self->system(), processor.core, slot);
    ask(self, actor, PrepareInput{})
        .then(
            [=](const Status&) {
              caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
              take_files(self, number, *slot);
            },
            [=](const caf::error& error) { self->quit(error); });
  }
}

/// Its files are fetched before it is prepared.
void fetch(Self self, std::uint64_t number, InputJob job, InputRequest request,
           std::vector<std::string> urls) {
  InputProcessorState& processor = state(self);
  job.request = std::move(request);
  job.remote.wanted = std::move(urls);
  add_job(processor, number, std::move(job));
  processor.to_fetch.push_back(number);
  start_fetches(self);
}

void take_work(Self self, std::size_t worker) {
  InputProcessorState& processor = state(self);
  InputSlot& slot = *processor.workers[worker].slot;
  auto processed = std::exchange(slot.processed, std::nullopt);
  InputRequest again = std::exchange(slot.again, {});
  RemoteMedia remote = std::exchange(slot.remote, {});
  RenderReply rendered = std::exchange(slot.rendered, {});
  const std::uint64_t number = processor.queue->finish(worker, now_seconds());
  auto job = take_job(processor, number);
  if (!job) {
    // aborted meanwhile
  } else if (!remote.wanted.empty()) {
    fetch(self, number, *std::move(job), std::move(again), std::move(remote.wanted));
  } else if (processed) {
    start(self, *std::move(job), *std::move(processed), std::move(again));
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
    worker.slot->remote = std::exchange(job.remote, {});
    worker.slot->with_item_data = job.is_again;
    worker.slot->cancelled = job.cancelled;
    ask(self, worker.actor, PrepareInput{})
        .then([self, place = next->worker](const Status&) { take_work(self, place); },
              [self](const caf::error& error) { self->quit(error); });
  }
}

template <class Request>
InputJob& add_request(InputProcessorState& processor, Request& request) {
  const std::uint64_t number = processor.num_jobs++;
  InputJob job;
  job.id = request.id;
  job.request = std::move(request);
  enqueue(processor, number, job.request);
  return add_job(processor, number, std::move(job));
}

/// Of a request whose items the engine's cache lacks: with their data.
void add_again(Self self, InputJob job) {
  InputProcessorState& processor = state(self);
  InputJob& added = add_request(processor, std::get<GenerateRequest>(job.request));
  added.is_again = true;
  added.router = std::move(job.router);
  added.when_aborted = std::move(job.when_aborted);
  added.placement = std::move(job.placement);
  give_work(self);
}

/// False: it is unknown here, or also to later actors. A worker that processes it stops soon.
bool abort_job(Self self, RequestId id) {
  InputProcessorState& processor = state(self);
  const auto found = processor.numbers.find(id);
  if (found == processor.numbers.end()) return false;
  const std::uint64_t number = found->second;
  InputJob job = *take_job(processor, number);
  *job.cancelled = true;
  processor.queue->remove(number);
  if (job.is_again) return false;
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
  processor.core = core;
  processor.encoder_router = encoder_router;
  processor.output_processor = output_processor;
  processor.scheduler = scheduler;
  processor.queue.emplace(num_workers);
  for (std::size_t i = 0; i < num_workers; ++i) {
    const auto slot = std::make_shared<InputSlot>();
    processor.workers.push_back({spawn_input_worker(self->system(), core, slot), slot});
  }
  return {
      [self](SubmitRequest& submission) {
        GenerateRequest& request = submission.request;
        const auto router = caf::actor_cast<RequestClientActor>(self->current_sender());
        const RequestId id = request.id;
        const auto thrown = guard([&] {
          RequestOutput when_aborted = final_output(request, FinishReason::kAbort);
          InputJob& job = add_request(state(self), request);
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
        InputJob& job = add_request(state(self), request);
        auto promise = self->make_response_promise<RenderReply>();
        job.rendered = promise;
        give_work(self);
        return promise;
      },
      [self](const ResetCaches&) {
        if (ProcessorCache* const cache = state(self).core->processor_cache()) cache->clear();
        return CachesReset{true};
      },
  };
}

}  // namespace
}  // namespace input_processor

InputProcessorActor spawn_input_processor(caf::actor_system& system,
                                          std::shared_ptr<const InputProcessor> core,
                                          std::size_t num_workers,
                                          OutputProcessorActor output_processor,
                                          SchedulerActor scheduler,
                                          EncoderRouterActor encoder_router) {
  return system.spawn<caf::detached>(input_processor::input_processor_behavior, std::move(core),
                                     num_workers, std::move(output_processor), std::move(scheduler),
                                     std::move(encoder_router));
}

}  // namespace troupe
