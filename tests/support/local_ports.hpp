#pragma once
// The Scheduler's ports for tests: the caches are in the same program and answer at once.

#include "runtime/cache/encoder_cache_manager.hpp"
#include "runtime/cache/kv_cache_manager.hpp"
#include "runtime/scheduler/ports.hpp"

namespace troupe {

class LocalKVCache final : public KVCachePort {
 public:
  explicit LocalKVCache(KVCacheManager& manager) : manager_(manager) {}
  void send(KVCacheUpdates updates) override { manager_.apply(updates); }
  Reply<SlotsAllocated> allocate(AllocateSlots question) override {
    ++num_round_trips;
    return manager_.allocate(question);
  }
  Reply<PrefixHit> lookup(LookupPrefix question) override {
    ++num_round_trips;
    return manager_.lookup(question);
  }
  Reply<RequestAdmitted> admit(AdmitRequest question) override {
    ++num_round_trips;
    return manager_.admit(question);
  }
  Reply<BlockOps> get_block_ops(GetBlockOps question) override {
    ++num_round_trips;
    return manager_.get_block_ops(question);
  }
  Reply<BlockTableRead> read_block_table(ReadBlockTable question) override {
    ++num_round_trips;
    return manager_.read_block_table(question);
  }
  Reply<InvalidBlocksFound> find_invalid_blocks(FindInvalidBlocks question) override {
    ++num_round_trips;
    return manager_.find_invalid_blocks(question);
  }
  Reply<PrefixCacheReset> reset(ResetPrefixCache question) override {
    ++num_round_trips;
    return manager_.reset(question);
  }

  int num_round_trips = 0;

 private:
  KVCacheManager& manager_;
};

class LocalEncoderCache final : public EncoderCachePort {
 public:
  explicit LocalEncoderCache(EncoderCacheManager& manager) : manager_(manager) {}
  void send(EncoderCacheUpdates updates) override { manager_.apply(updates); }
  Reply<EncoderInputsPlanned> plan(PlanEncoderInputs question) override {
    return manager_.plan(question);
  }
  Reply<FreedEncoderOutputs> take_freed(TakeFreedEncoderOutputs question) override {
    return manager_.take_freed(question);
  }

 private:
  EncoderCacheManager& manager_;
};

}  // namespace troupe
