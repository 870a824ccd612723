#pragma once
// A rank's blocks as other engines read them.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/file_descriptor.hpp"
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
/// A thread for each connection, of which there are as many as ranks of other engines.
class PeerServer {
 public:
  static constexpr std::size_t kMaxConnections = 256;
  /// For a key that is not there yet: its reader may be faster than the step that tells of it.
  static constexpr std::chrono::seconds kMaxWaitForKey{2};
  static constexpr std::chrono::seconds kMaxFrameTime{10};

  struct Identity {
    std::int32_t tensor_rank = 0;
    std::int32_t tensor_parallel_size = 1;
    double lease_s = 30;
  };
  /// Errors: kIo, it cannot listen.
  [[nodiscard]] static Result<std::unique_ptr<PeerServer>> open(const PeerListen& listen,
                                                                const Identity& identity);
  ~PeerServer();
  PeerServer(const PeerServer&) = delete;
  PeerServer& operator=(const PeerServer&) = delete;

  [[nodiscard]] const PeerEndpoint& endpoint() const noexcept { return endpoint_; }
  /// There is a new cache: nothing of an earlier one is held or read any more.
  void set_pages(PeerPages pages, const PeerOrigin& origin);
  /// Known keys are left alone.
  void hold(const PeerHold& hold);
  /// What is free since the last call, and forgotten.
  [[nodiscard]] std::vector<RequestId> take_finished();

 private:
  struct Held {
    PeerHold what;
    SteadyTime expires;
    std::int32_t num_reading = 0;
    std::int32_t num_released = 0;
    bool released = false;
  };
  struct Connection {
    std::thread thread;
    std::atomic<bool> ended = false;
  };

  PeerServer(FileDescriptor local, FileDescriptor remote, FileDescriptor stop,
             PeerEndpoint endpoint, PeerListen listen, const Identity& identity);
  void accept_all();
  void accept_one(int listener, bool is_local);
  void serve(PeerLink& link);
  [[nodiscard]] Result<void> welcome(PeerLink& link);
  [[nodiscard]] Result<void> answer(PeerLink& link, const PeerRead& read, FileDescriptor memory);
  [[nodiscard]] Result<void> copy(const PeerRead& read, std::span<std::byte> to);
  [[nodiscard]] Result<void> begin_reading(const PeerRead& read, PeerHold& what);
  void end_reading(const std::string& key);
  void renew(const PeerRenew& what);
  void release(const PeerRelease& what);
  [[nodiscard]] SteadyTime lease_end() const;

  FileDescriptor local_;   // listens
  FileDescriptor remote_;  // likewise, or none
  FileDescriptor stop_;    // readable at the end
  PeerEndpoint endpoint_;
  PeerListen listen_;
  Identity identity_;
  std::shared_mutex pages_mutex_;  // held by readers while they copy
  PeerPages pages_;
  PeerOrigin origin_{};
  std::mutex mutex_;  // guards held_
  std::condition_variable changed_;
  std::map<std::string, Held> held_;
  std::list<Connection> connections_;  // the accepting thread's
  std::thread thread_;
};

}  // namespace troupe
