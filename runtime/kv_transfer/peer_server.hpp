#pragma once
// A rank's blocks as other engines read them.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/event_fd.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/kv_transfer/peer_device.hpp"
#include "runtime/kv_transfer/peer_link.hpp"
#include "runtime/kv_transfer/peer_pages.hpp"

namespace troupe {

/// Where a rank listens.
struct PeerListen {
  std::string host;  ///< for other hosts; empty: for this one only
  std::uint16_t port = 0;
  std::shared_ptr<const Credentials> credentials;  ///< of other hosts
};

/// Holds blocks for readers on other ranks, which connect to it. What is held is free when its
/// readers have released it, or when none of them has shown a sign for the time of a lease; never
/// while it is being read.
///
/// What is still being computed is read as well, layer by layer: a reader waits for the rest.
///
/// A thread for each connection, of which there are as many as ranks of other engines.
class PeerServer {
 public:
  static constexpr std::size_t kMaxConnections = 256;
  /// For a key that is not there yet, while no step is computed: its reader may be faster than the
  /// step that tells of it.
  static constexpr std::chrono::seconds kMaxWaitForKey{2};
  static constexpr std::chrono::seconds kMaxFrameTime{10};

  struct Identity {
    std::int32_t tensor_rank = 0;
    std::int32_t tensor_parallel_size = 1;
    double lease_s = 30;
    bool uses_devices = false;  ///< KV goes from device to device
  };
  /// Errors: kIo, it cannot listen.
  [[nodiscard]] static Result<std::unique_ptr<PeerServer>> open(const PeerListen& listen,
                                                                const Identity& identity);
  ~PeerServer();
  PeerServer(const PeerServer&) = delete;
  PeerServer& operator=(const PeerServer&) = delete;

  [[nodiscard]] const PeerEndpoint& endpoint() const noexcept { return endpoint_; }
  /// There is a new cache: nothing of an earlier one is held or read any more.
  /// `device`: of the calling thread, where devices are used.
  void set_pages(PeerPages pages, const PeerOrigin& origin, int device);
  /// Known keys are left alone, but for those of streams, which are whole then.
  void hold(const PeerHold& hold);
  /// A step that may tell of new keys; until finish_step, unknown ones may be those of the next.
  void begin_step();
  /// The step that begins computes a part of it; not called for one that has been held or ended.
  void begin_stream_step(const PeerStream& stream);
  /// The step has written the layer's keys and values; all layers'.
  void finish_layer(std::int32_t layer);
  void finish_step();
  /// Their blocks are not read any more when this returns: a copy that has begun is awaited.
  void end_stream(const std::string& key);
  void end_all_streams();
  /// What is free since the last call, and forgotten.
  [[nodiscard]] std::vector<RequestId> take_finished();

 private:
  struct Held {
    PeerHold what;
    SteadyTime expires;
    std::int32_t num_reading = 0;
    std::int32_t num_released = 0;
    bool released = false;
    bool streams = false;                 ///< its request runs
    std::vector<std::int32_t> num_ready;  ///< tokens of each layer of pages_; empty: all
  };
  struct Connection {
    std::thread thread;
    std::atomic<bool> ended = false;
  };

  PeerServer(FileDescriptor local, FileDescriptor remote, PeerEndpoint endpoint, PeerListen listen,
             const Identity& identity);
  void accept_all();
  void accept_one(int listener, bool is_local);
  void serve(PeerLink& link);
  /// Null: KV goes through the hosts.
  [[nodiscard]] Result<std::unique_ptr<PeerDevice>> welcome(PeerLink& link);
  [[nodiscard]] Result<void> answer(PeerLink& link, const PeerRead& read, FileDescriptor memory);
  [[nodiscard]] Result<void> answer(PeerLink& link, const PeerRead& read, PeerDevice& device);
  /// Calls use() with where they are; they do not change until it returns. False: some of them are
  /// not computed yet.
  template <class Use>
  [[nodiscard]] Result<bool> use_parts(const PeerRead& read, Use&& use);
  [[nodiscard]] Result<bool> begin_reading(const PeerRead& read, PeerHold& what);
  [[nodiscard]] bool is_ready(const Held& held, const PeerRead& read) const;
  [[nodiscard]] bool is_over(const std::string& key) const;
  void forget(std::map<std::string, Held>::iterator held);
  void end_stream(std::unique_lock<std::mutex>& lock, const std::string& key);
  void end_reading(const std::string& key);
  void renew(const PeerRenew& what);
  void release(const PeerRelease& what);
  [[nodiscard]] SteadyTime lease_end() const;

  FileDescriptor local_;   // listens
  FileDescriptor remote_;  // likewise, or none
  EventFd stop_;           // readable at the end
  PeerEndpoint endpoint_;
  PeerListen listen_;
  Identity identity_;
  std::shared_mutex pages_mutex_;  // held by readers while they copy
  PeerPages pages_;
  PeerOrigin origin_{};
  int device_ = 0;
  std::mutex mutex_;  // guards held_
  std::condition_variable changed_;
  std::map<std::string, Held> held_;
  std::deque<std::string> over_;  // keys that were held until lately; the oldest first
  bool in_step_ = false;
  std::vector<std::pair<std::string, std::int32_t>> step_streams_;  // the owner's: ready after it
  std::list<Connection> connections_;                               // the accepting thread's
  std::thread thread_;
};

}  // namespace troupe
