#include "actors/scheduler_ports.hpp"

#include <utility>

#include "runtime/base/log.hpp"

namespace troupe {
namespace {

/// Sends a question to an actor; the reply is set when the answer arrives. Without an answer the
/// Scheduler cannot continue: it ends with the error, and the Supervisor handles that.
template <class Answer, class Handle, class Question>
Reply<Answer> ask_for(SchedulerActor::pointer self, const Handle& to, Question question) {
  auto [reply, setter] = Reply<Answer>::pending();
  ask(self, to, std::move(question))
      .then([setter = setter](Answer& answer) { setter.set(std::move(answer)); },
            [self](const caf::error& error) {
              log_error("a cache manager did not answer",
                        kv("error", to_text(error, self->system())));
              self->quit(error);
            });
  return std::move(reply);
}

class KVCacheActorPort final : public KVCachePort {
 public:
  KVCacheActorPort(SchedulerActor::pointer self, KVCacheManagerActor to)
      : self_(self), to_(std::move(to)) {}
  void send(KVCacheUpdates updates) override { troupe::send(self_, to_, std::move(updates)); }
  Reply<SlotsAllocated> allocate(AllocateSlots question) override {
    return ask_for<SlotsAllocated>(self_, to_, std::move(question));
  }
  Reply<PrefixHit> lookup(LookupPrefix question) override {
    return ask_for<PrefixHit>(self_, to_, std::move(question));
  }
  Reply<RequestAdmitted> admit(AdmitRequest question) override {
    return ask_for<RequestAdmitted>(self_, to_, std::move(question));
  }
  Reply<BlockOps> get_block_ops(GetBlockOps question) override {
    return ask_for<BlockOps>(self_, to_, std::move(question));
  }
  Reply<BlockTableRead> read_block_table(ReadBlockTable question) override {
    return ask_for<BlockTableRead>(self_, to_, std::move(question));
  }
  Reply<InvalidBlocksFound> find_invalid_blocks(FindInvalidBlocks question) override {
    return ask_for<InvalidBlocksFound>(self_, to_, std::move(question));
  }
  Reply<PrefixCacheReset> reset(ResetPrefixCache question) override {
    return ask_for<PrefixCacheReset>(self_, to_, std::move(question));
  }

 private:
  SchedulerActor::pointer self_;
  KVCacheManagerActor to_;
};

class EncoderCacheActorPort final : public EncoderCachePort {
 public:
  EncoderCacheActorPort(SchedulerActor::pointer self, EncoderCacheManagerActor to)
      : self_(self), to_(std::move(to)) {}
  void send(EncoderCacheUpdates updates) override { troupe::send(self_, to_, std::move(updates)); }
  Reply<EncoderInputsPlanned> plan(PlanEncoderInputs question) override {
    return ask_for<EncoderInputsPlanned>(self_, to_, std::move(question));
  }
  Reply<FreedEncoderOutputs> take_freed(TakeFreedEncoderOutputs question) override {
    return ask_for<FreedEncoderOutputs>(self_, to_, std::move(question));
  }

 private:
  SchedulerActor::pointer self_;
  EncoderCacheManagerActor to_;
};

}  // namespace

std::unique_ptr<KVCachePort> make_kv_cache_port(SchedulerActor::pointer self,
                                                KVCacheManagerActor manager) {
  return std::make_unique<KVCacheActorPort>(self, std::move(manager));
}

std::unique_ptr<EncoderCachePort> make_encoder_cache_port(SchedulerActor::pointer self,
                                                          EncoderCacheManagerActor manager) {
  return std::make_unique<EncoderCacheActorPort>(self, std::move(manager));
}

}  // namespace troupe
