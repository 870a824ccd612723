#pragma once
// Loads blocks of a rank's KV cache from another engine.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "runtime/base/event_fd.hpp"
#include "runtime/kv_transfer/peer_device.hpp"
#include "runtime/kv_transfer/peer_link.hpp"
#include "runtime/kv_transfer/peer_pages.hpp"

namespace troupe {

/// Of the rank that loads.
struct PeerReader {
  PeerOrigin origin{};
  std::int32_t tensor_rank = 0;
  std::int32_t tensor_parallel_size = 1;
  std::int32_t rank = 0;
  std::int32_t world_size = 1;
  std::shared_ptr<const Credentials> credentials;  ///< of other hosts; null: this one only
  std::chrono::milliseconds timeout{5000};         ///< for a connection, and for each answer
  bool uses_devices = false;                       ///< KV goes from device to device
  int device = 0;                                  ///< the same: the rank's
};

/// A thread that loads from one engine, in the order of the calls, writes into the blocks, and
/// keeps the engine from giving up what is wanted. Several ranks of that engine may each have a
/// part.
///
/// What is not computed yet is awaited, for the time of a lease, while other loads go on.
class PeerLoader {
 public:
  /// Of what is read at once.
  static constexpr std::int64_t kMaxReadBytes = std::int64_t{8} << 20;
  /// What is smaller is read together with the next layers.
  static constexpr std::int64_t kMinReadBytes = std::int64_t{1} << 20;
  /// A prefix is read in parts of so many tokens: the first ones are there while the last ones are
  /// being computed.
  static constexpr std::int32_t kPartTokens = 128;

  /// `source`: of the engine, whatever its key.
  PeerLoader(const PeerSource& source, PeerReader reader, PeerPages pages);
  /// Stops in the middle of a load.
  ~PeerLoader();
  PeerLoader(const PeerLoader&) = delete;
  PeerLoader& operator=(const PeerLoader&) = delete;

  /// The key is renewed until it is loaded or released.
  void watch(const std::string& key);
  void load(PeerLoad load);
  void release(const std::string& key);

  struct Loaded {
    RequestId id{};
    Result<void> result;
  };
  /// Appends those since the last call.
  void take_loaded(std::vector<Loaded>& loaded);
  /// Nothing is wanted from the engine.
  [[nodiscard]] bool is_idle();

 private:
  struct Release {
    std::string key;
  };
  /// What is to be read from one rank at once, and where to it is written.
  struct Read {
    std::size_t rank = 0;
    PeerRead request;
  };
  /// A load under way.
  struct Load {
    PeerLoad what;
    std::optional<std::deque<Read>> left;  ///< none: it has not begun
    SteadyTime latest;                     ///< for the next part of it
  };
  using Job = std::variant<Load, Release>;
  /// A connection to a rank of the engine.
  struct Rank {
    std::unique_ptr<PeerLink> link;
    PeerWelcome welcome;
    std::unique_ptr<PeerDevice> device;  ///< null: KV goes through the hosts
  };

  void run();
  void fail_waiting(const Error& error);
  void renew();
  /// False: what comes next is not computed yet.
  [[nodiscard]] Result<bool> perform(Load& load, std::uint32_t wait_ms);
  void perform(const Release& release);
  [[nodiscard]] Result<Rank*> connect(std::size_t rank);
  [[nodiscard]] Result<std::deque<Read>> plan(const PeerLoad& load);
  /// Of tokens [begin_token, end_token).
  [[nodiscard]] Result<void> plan_reads(std::size_t rank, const Rank& from, const PeerLoad& load,
                                        std::int32_t begin_token, std::int32_t end_token,
                                        std::deque<Read>& reads) const;
  [[nodiscard]] Result<bool> read(Rank& from, PeerRead request,
                                  const std::vector<std::vector<BlockId>>& blocks);
  /// Where what is read goes to.
  [[nodiscard]] std::vector<PeerPart> parts(const Rank& from, const PeerRead& request,
                                            const std::vector<std::vector<BlockId>>& blocks) const;
  /// The ranks of the engine that this one loads from.
  [[nodiscard]] std::vector<std::size_t> sources() const;
  [[nodiscard]] SteadyTime deadline() const {
    return std::chrono::steady_clock::now() + reader_.timeout;
  }

  std::vector<std::string> endpoints_;
  bool is_split_alike_;  // each of its ranks has its equal
  PeerReader reader_;
  PeerPages pages_;
  EventFd stop_;
  std::map<std::size_t, Rank> ranks_;  // the thread's
  SteadyTime renewed_;                 // the thread's
  double lease_s_ = 0;                 // the thread's; 0: not known yet
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::vector<std::string> watched_;
  std::vector<Loaded> loaded_;
  bool is_busy_ = false;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace troupe
