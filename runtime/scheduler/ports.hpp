#pragma once
// The Scheduler's interface to the caches. In tests the reply is immediate; in the actor a port
// sends a message, and sets the Reply when the answer arrives, on the Scheduler's thread. A port
// forwards everything in the order of the calls.

#include "messages/cache.hpp"
#include "messages/encoder_cache.hpp"
#include "runtime/base/task.hpp"

namespace troupe {

class KVCachePort {
 public:
  virtual ~KVCachePort() = default;
  virtual void send(KVCacheUpdates updates) = 0;  ///< one-way
  virtual Reply<SlotsAllocated> allocate(AllocateSlots question) = 0;
  virtual Reply<PrefixHit> lookup(LookupPrefix question) = 0;
  virtual Reply<RequestAdmitted> admit(AdmitRequest question) = 0;
  virtual Reply<BlockOps> get_block_ops(GetBlockOps question) = 0;
  virtual Reply<BlockTableRead> read_block_table(ReadBlockTable question) = 0;
  virtual Reply<InvalidBlocksFound> find_invalid_blocks(FindInvalidBlocks question) = 0;
  virtual Reply<PrefixCacheReset> reset(ResetPrefixCache question) = 0;
};

class EncoderCachePort {
 public:
  virtual ~EncoderCachePort() = default;
  virtual void send(EncoderCacheUpdates updates) = 0;  ///< one-way
  virtual Reply<EncoderInputsPlanned> plan(PlanEncoderInputs question) = 0;
  virtual Reply<FreedEncoderOutputs> take_freed(TakeFreedEncoderOutputs question) = 0;
};

}  // namespace troupe
