#pragma once
// Remote stores without waiting for them: each on a thread of its own.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "runtime/kv_transfer/lmcache/remote_store.hpp"

namespace troupe::lmcache {

/// Asks which of a request's chunks a remote store has. Used by one thread, which it never keeps
/// waiting.
class RemoteLookup {
 public:
  RemoteLookup(std::unique_ptr<RemoteStore> store, std::chrono::milliseconds timeout);
  ~RemoteLookup();
  RemoteLookup(const RemoteLookup&) = delete;
  RemoteLookup& operator=(const RemoteLookup&) = delete;

  /// How many of the keys are there before the first that is not: the first call for a request
  /// asks, nullopt: it is not known yet. 0 after the timeout, or when the store fails.
  [[nodiscard]] std::optional<std::size_t> count(std::uint64_t request,
                                                 const std::vector<std::string>& keys);
  /// What is asked for it, if anything, does not matter any more.
  void forget(std::uint64_t request);

 private:
  struct Question {
    std::uint64_t request = 0;
    std::vector<std::string> keys;
  };
  struct Answer {
    std::chrono::steady_clock::time_point deadline;
    std::optional<std::size_t> count;
  };
  void run();

  const std::unique_ptr<RemoteStore> store_;  // the thread's
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Question> questions_;
  std::unordered_map<std::uint64_t, Answer> answers_;  // of requests that have asked
  bool ends_ = false;
  std::thread thread_;
};

/// Puts values into a remote store. What waits takes at most kMaxWaitingBytes; further values are
/// dropped, as are those that the store does not take: they are missed when they are looked up.
class RemoteWriter {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  static constexpr std::size_t kMaxWaitingBytes = std::size_t{256} << 20;

  explicit RemoteWriter(std::unique_ptr<RemoteStore> store);
  /// Puts what waits, as long as the store takes it.
  ~RemoteWriter();
  RemoteWriter(const RemoteWriter&) = delete;
  RemoteWriter& operator=(const RemoteWriter&) = delete;

  void put(std::string key, Bytes bytes);

 private:
  void run();

  const std::unique_ptr<RemoteStore> store_;  // the thread's
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::string, Bytes>> waiting_;
  std::size_t waiting_bytes_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace troupe::lmcache
