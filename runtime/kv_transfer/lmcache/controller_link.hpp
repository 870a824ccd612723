#pragma once
// An engine's connection to LMCache's controller.

#include <memory>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/lmcache/chunk_board.hpp"
#include "runtime/kv_transfer/lmcache/lmcache_config.hpp"

namespace troupe::lmcache {

/// Registers the ranks of an engine with LMCache's controller, reports what comes and goes on the
/// board, sends heartbeats, and answers the controller's orders; on a thread of its own, with
/// sockets of ZeroMQ. All ranks have the same chunks, so one thread speaks for all of them.
///
/// A controller that is not there, or does not answer in time, is tried again: with every new
/// connection the ranks register, which drops what the controller knew of them, and all chunks are
/// reported anew. Nobody is authenticated: the ports for orders are bound to the address that
/// leads to the controller, and belong into a network that is trusted.
class ControllerLink {
 public:
  /// Pre: check(). `board` outlives it.
  ControllerLink(ControllerOptions options, std::int32_t num_workers, ChunkBoard& board);
  /// Takes leave of the controller.
  ~ControllerLink();
  ControllerLink(const ControllerLink&) = delete;
  ControllerLink& operator=(const ControllerLink&) = delete;

  /// Errors: kInvalidArgument naming the setting that does not fit an engine of num_workers ranks.
  [[nodiscard]] static Result<void> check(const ControllerOptions& options,
                                          std::int32_t num_workers);

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace troupe::lmcache
