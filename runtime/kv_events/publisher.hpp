#pragma once
// KV events over ZeroMQ, as vLLM publishes them, for prefix-aware routers and indexers.
//
// PUB socket, a message of three frames per batch:
//   topic | sequence, 8 bytes big-endian, from 0 | msgpack [time, [event, ...], data parallel rank]
//
// ROUTER socket, for subscribers that missed some. A request is the two frames
//   empty | sequence to start from, 8 bytes big-endian
// (what a REQ socket sends; a DEALER sends the empty frame itself, and can read all of the answer).
// The answer is one message per batch that is still kept, then the end:
//   empty | topic | sequence | batch               ...
//   empty | empty | ff ff ff ff ff ff ff ff | empty
//
// Snapshot, which vLLM has not: for subscribers that begin late, or whose gap is older than what is
// kept. The request is the same with the eight letters "snapshot" instead of a sequence. The answer
// has the same form; its batches are AllBlocksCleared and then BlockStored events that make up the
// whole prefix cache, all under the sequence of the last batch that they include. A subscriber
// applies them and goes on with the batches behind that sequence. An engine that has published
// nothing yet answers with the end alone: the cache is empty, the first batch will be 0. So does a
// vLLM engine, which takes the letters for a sequence far ahead. What is not a request is ignored.

#include <cstdint>
#include <memory>
#include <string>

#include "messages/kv_events.hpp"
#include "runtime/base/result.hpp"
#include "runtime/kv_events/kv_events_config.hpp"
#include "runtime/kv_events/wire_form.hpp"

namespace troupe {

/// Owns the sockets, and the thread that serves them. Called by the publisher's actor.
class KVEventPublisher {
 public:
  /// Opens the sockets, on the endpoints of form.data_parallel_rank. Pre: config.publishes().
  /// Errors: kIo for an endpoint that cannot be had, kInvalidArgument for one that is none.
  [[nodiscard]] static Result<std::unique_ptr<KVEventPublisher>> start(const KVEventsConfig& config,
                                                                       const KVEventForm& form);
  /// Publishes what is queued, and gives subscribers at most a second to take it.
  ~KVEventPublisher();
  KVEventPublisher(const KVEventPublisher&) = delete;
  KVEventPublisher& operator=(const KVEventPublisher&) = delete;

  /// Never blocks: once max_queue_size batches wait, further events join the last of them. Any
  /// thread, one at a time.
  void publish(KVEventBatch batch);

  /// As opened: with the port that the system chose, if 0 was asked for.
  [[nodiscard]] const std::string& endpoint() const noexcept;
  [[nodiscard]] const std::string& replay_endpoint() const noexcept;  ///< empty: none

 private:
  class Impl;
  explicit KVEventPublisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
