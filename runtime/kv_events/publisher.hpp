#pragma once
// KV events over ZeroMQ, as vLLM publishes them, for prefix-aware routers and indexers.
//
// PUB socket, a message of three frames per batch:
//   topic | sequence, 8 bytes big-endian, from 0 | msgpack [time, [event, ...], data parallel rank]
//
// ROUTER socket, for subscribers that missed batches. A request has the two frames
//   empty | sequence to start from, 8 bytes big-endian
// (as sent by a REQ socket; a DEALER sends the empty frame itself, and can read the whole reply).
// The reply is one message per batch that is still kept, then the end:
//   empty | topic | sequence | batch               ...
//   empty | empty | ff ff ff ff ff ff ff ff | empty
//
// Snapshot, an extension to vLLM: for subscribers that start late, or whose gap is older than the
// kept batches. The request has the eight letters "snapshot" in place of the sequence. The reply
// has the same form; its batches are AllBlocksCleared and then BlockStored events for the whole
// prefix cache, all with the sequence of the last batch that they include. A subscriber applies
// them and continues with the batches after that sequence. An engine that has not published
// anything replies with the end only: the cache is empty, the first batch will be 0. So does a vLLM
// engine, which takes the letters for a sequence far ahead. Invalid requests are ignored.

#include <cstdint>
#include <memory>
#include <string>

#include "messages/kv_events.hpp"
#include "runtime/base/result.hpp"
#include "runtime/kv_events/kv_events_config.hpp"
#include "runtime/kv_events/wire_form.hpp"

namespace troupe {

/// Owns the sockets, and the thread that serves them. Used by the publisher's actor.
class KVEventPublisher {
 public:
  /// Opens the sockets, on the endpoints of form.data_parallel_rank. Pre: config.publishes().
  /// Errors: kIo (endpoint not available), kInvalidArgument (endpoint not valid).
  [[nodiscard]] static Result<std::unique_ptr<KVEventPublisher>> start(const KVEventsConfig& config,
                                                                       const KVEventForm& form);
  /// Publishes what is queued, and waits at most a second for subscribers to read it.
  ~KVEventPublisher();
  KVEventPublisher(const KVEventPublisher&) = delete;
  KVEventPublisher& operator=(const KVEventPublisher&) = delete;

  /// Never blocks: once max_queue_size batches are queued, further events are merged into the last
  /// one. Any thread, one at a time.
  void publish(KVEventBatch batch);

  /// The actual endpoint, including a port that was chosen by the system.
  [[nodiscard]] const std::string& endpoint() const noexcept;
  [[nodiscard]] const std::string& replay_endpoint() const noexcept;  ///< empty: none

 private:
  class Impl;
  explicit KVEventPublisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
