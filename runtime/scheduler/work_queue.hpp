#pragma once
// What the threads of a pool do next.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "runtime/scheduler/fair_share.hpp"

namespace troupe {

/// Owns the order in which workers take what clients have them do, reading a body or preparing a
/// prompt; the work itself it does not see. Times are seconds of any one clock.
///
/// Short work never waits for long work alone, and long work is never starved:
/// - Where there are several workers, one is left to what is short (less than kLongBytes); while
///   something long waits, one is at something long.
/// - Of several tenants, the one that the workers have spent the least time on comes first; of the
///   clients of one tenant likewise.
/// - What one client sends goes by size and age: each kBytesPerSecond count as much as a second
///   that another has waited. (With one worker by age alone, as if a tenant were one client: that
///   is for who wants the order kept.)
class WorkQueue {
 public:
  static constexpr std::size_t kLongBytes = 64 << 10;
  static constexpr double kBytesPerSecond = 64 << 10;

  /// Pre: num_workers >= 1. All of them are idle.
  explicit WorkQueue(std::size_t num_workers) : running_(num_workers) {}

  struct Item {
    std::uint64_t number = 0;  ///< whoever adds it chooses; never twice
    std::uint32_t tenant = 0;
    std::uint32_t client = 0;  ///< of the tenant: all that sends with one key may be several
    std::size_t num_bytes = 0;
  };
  void add(const Item& item, double now);

  struct Start {
    std::size_t worker = 0;
    std::uint64_t number = 0;
  };
  /// An idle worker and what it begins with; nullopt while there is no such pair.
  [[nodiscard]] std::optional<Start> start_next(double now);
  /// The worker is idle again. Returns what it was at. Pre: start_next gave it something.
  std::uint64_t finish(std::size_t worker, double now);
  /// True if it waited: it does no more. What has been started goes on until `finish`.
  bool remove(std::uint64_t number);

  [[nodiscard]] std::size_t num_waiting() const noexcept { return waiting_.size(); }

 private:
  using Place = std::pair<double, std::uint64_t>;          // when its turn is, its number
  using Client = std::pair<std::uint32_t, std::uint32_t>;  // the tenant first
  using Lane = std::map<Client, std::set<Place>>;          // none of them empty
  struct Waiting {
    Client client;
    double place;
    bool is_long;
  };
  struct Running {
    std::uint64_t number;
    Client client;
    bool is_long;
    double since;
  };
  /// Of a client that has something here: who comes back begins with those that were served least.
  struct Share {
    double spent = 0;  // seconds of workers
    std::size_t num_items = 0;
  };

  [[nodiscard]] Lane* choose_lane();
  [[nodiscard]] std::uint64_t first_of(const Lane& lane, double now) const;
  void enter(const Client& client);
  void leave(const Client& client);
  Waiting take(std::uint64_t number);

  std::vector<std::optional<Running>> running_;  // by worker
  std::unordered_map<std::uint64_t, Waiting> waiting_;
  Lane short_;
  Lane long_;
  FairShare shares_;  // of tenants, in microseconds of workers
  std::map<Client, Share> clients_;
};

}  // namespace troupe
