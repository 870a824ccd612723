// The InputProcessor, one of a pool: prepares requests, and tells the OutputProcessor of each
// before the Scheduler.
#include "runtime/processors/input_processor.hpp"

#include <unordered_map>

#include "actors/spawn.hpp"
#include "runtime/base/guard.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/memory.hpp"

namespace troupe {
namespace {

struct InputProcessorState {
  InputProcessorState() = default;
  static inline const char* name = "input_processor";
  /// Prepared, not yet known to the OutputProcessor. An abort takes a request out.
  std::unordered_map<RequestId, EngineCoreRequests> registering;
};

using Self = InputProcessorActor::stateful_pointer<InputProcessorState>;

/// What the template and the tokenizer made of a prompt has gone.
void note_processed(std::size_t num_prompt_bytes) {
  constexpr std::size_t kFactor = 8;
  note_freed_memory(kFactor * num_prompt_bytes);
}

void refuse(Self self, const FrontendActor& frontend, RequestId id, Error error) {
  RequestOutputs outputs;
  outputs.outputs.push_back({.id = id, .finished = true, .error = std::move(error)});
  send(self, frontend, std::move(outputs));
}

InputProcessorActor::behavior_type input_processor_behavior(
    Self self, const std::shared_ptr<const InputProcessor>& core,
    const OutputProcessorActor& output_processor, const SchedulerActor& scheduler) {
  return {
      [=](GenerateRequest& request) {
        const auto frontend = caf::actor_cast<FrontendActor>(self->current_sender());
        const RequestId id = request.id;
        const std::size_t num_prompt_bytes = text_bytes(request.prompt);
        Result<ProcessedRequest> processed = Error{};
        if (auto thrown = guard([&] {
              processed = core->process(std::move(request), {.clock = ChatClock::now()});
              if (processed.ok())
                state(self).registering[id] = EngineCoreRequests{std::move(processed->samples)};
            })) {
          processed = *std::move(thrown);
        }
        note_processed(num_prompt_bytes);
        if (!processed.ok()) {
          state(self).registering.erase(id);
          return refuse(self, frontend, id, processed.error());
        }
        ask(self, output_processor, std::move(processed->output))
            .then(
                [=](const Status&) {
                  auto ready = state(self).registering.extract(id);
                  if (ready.empty()) return;  // aborted meanwhile
                  send(self, scheduler, std::move(ready.mapped()));
                },
                [=](const caf::error& error) {
                  // The engine ends with it; the Frontend gives the request to the next one.
                  state(self).registering.erase(id);
                  log_warning("the output processor is gone", kv("id", value(id)),
                              kv("error", to_text(error, self->system())));
                });
      },
      [=](const AbortRequests& abort) {
        for (const RequestId id : abort.ids) state(self).registering.erase(id);
        send(self, output_processor, abort);
        send(self, scheduler, abort);
      },
      [=](const RenderRequest& request) {
        RenderReply reply;
        if (auto thrown =
                guard([&] { reply = core->render(request, {.clock = ChatClock::now()}); })) {
          reply = {.error = std::move(thrown)};
        }
        note_processed(text_bytes(request.prompt));
        return reply;
      },
  };
}

}  // namespace

InputProcessorActor spawn_input_processor(caf::actor_system& system,
                                          std::shared_ptr<const InputProcessor> core,
                                          OutputProcessorActor output_processor,
                                          SchedulerActor scheduler) {
  return system.spawn<caf::detached>(input_processor_behavior, std::move(core),
                                     std::move(output_processor), std::move(scheduler));
}

}  // namespace troupe
