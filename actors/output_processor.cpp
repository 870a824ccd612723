// The OutputProcessor: tokens in, text out, one message per step in each direction.
#include "runtime/processors/output_processor.hpp"

#include "actors/spawn.hpp"

namespace troupe {
namespace output_processor {
namespace {

struct OutputProcessorState {
  OutputProcessorState() = default;
  static inline const char* name = "output_processor";
  std::unique_ptr<OutputProcessor> core;
  RequestClientActor router;  ///< the latest subscriber
};

using Self = OutputProcessorActor::stateful_pointer<OutputProcessorState>;

void hand_out(Self self, RequestOutputs outputs) {
  if (state(self).router) send(self, state(self).router, std::move(outputs));
}

OutputProcessorActor::behavior_type output_processor_behavior(
    Self self, const std::shared_ptr<const Tokenizer>& tokenizer) {
  state(self).core = std::make_unique<OutputProcessor>(tokenizer);
  return {
      [self](const Subscribe&) {
        state(self).router = caf::actor_cast<RequestClientActor>(self->current_sender());
        return Status{};
      },
      [self](OutputRequest& request) {
        state(self).core->add(std::move(request));
        return Status{};
      },
      [self](EngineCoreOutputs& outputs) {
        ProcessedOutputs processed = state(self).core->process(std::move(outputs));
        if (!processed.to_abort.empty()) {
          const auto scheduler = caf::actor_cast<SchedulerActor>(self->current_sender());
          send(self, scheduler, AbortRequests{std::move(processed.to_abort)});
        }
        hand_out(self, std::move(processed.to_frontend));
      },
      [self](const AbortRequests& abort) {
        // The InputProcessor notifies the Scheduler, after the requests themselves.
        hand_out(self, state(self).core->abort(abort.ids).to_frontend);
      },
  };
}

}  // namespace
}  // namespace output_processor

OutputProcessorActor spawn_output_processor(caf::actor_system& system,
                                            std::shared_ptr<const Tokenizer> tokenizer) {
  return system.spawn(output_processor::output_processor_behavior, std::move(tokenizer));
}

}  // namespace troupe
