#pragma once
// An engine's connection to LMCache's controller.

#include <memory>
#include <optional>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/lmcache/chunk_board.hpp"
#include "runtime/kv_transfer/lmcache/chunk_source.hpp"
#include "runtime/kv_transfer/lmcache/lmcache_config.hpp"

namespace troupe::lmcache {

/// Registers the ranks of an engine with LMCache's controller, reports what comes and goes on the
/// board, sends heartbeats, and answers the controller's orders; on a thread of its own, with
/// sockets of ZeroMQ. All ranks have the same chunks, so one thread speaks for all of them.
///
/// A controller that is not there, or does not answer in time, is tried again: with every new
/// connection the ranks register, which drops what the controller knew of them, and all chunks are
/// reported anew.
///
/// A move copies chunks from this engine's remote store to the one that the other instance has
/// registered (as its peer_init_url, a URL, so that LMCache's own instances, which expect an
/// address without a scheme there, fail at once when they are told to read from it), each on a
/// thread of its own. The other instance finds them with its next lookup, and reports them once it
/// has loaded them. Without a copy they leave the old location when all ranks are done, not the
/// remote store.
///
/// Nobody is authenticated: the ports for orders are bound to the address that
/// leads to the controller, and belong into a network that is trusted.
class ControllerLink {
 public:
  /// Pre: options are those that of_group has returned. `board` outlives it. `source`: of the
  /// chunks that it moves; none: it moves nothing.
  ControllerLink(ControllerOptions options, std::int32_t num_workers, ChunkBoard& board,
                 std::optional<ChunkSource> source = {});
  /// Takes leave of the controller.
  ~ControllerLink();
  ControllerLink(const ControllerLink&) = delete;
  ControllerLink& operator=(const ControllerLink&) = delete;

  /// Of one of num_groups groups of num_workers ranks: what each of them is told. Several groups
  /// are instances of their own, as each has its own chunks: named INSTANCE_dpN, as vLLM names
  /// engines of data parallel ranks, with the N-th part of the ports. Errors: kInvalidArgument
  /// naming the setting that does not fit.
  [[nodiscard]] static Result<ControllerOptions> of_group(ControllerOptions options,
                                                          std::int32_t num_workers,
                                                          std::int32_t group = 0,
                                                          std::int32_t num_groups = 1);

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace troupe::lmcache
