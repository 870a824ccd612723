#pragma once
// Fair scheduling of a thread pool's work.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "runtime/scheduler/fair_share.hpp"

namespace troupe {

/// Owns the order in which workers do the clients' work, reading a body or preparing a prompt; the
/// work itself is opaque. Times are seconds of one clock.
///
/// Short work never waits for long work only, and long work is never starved:
/// - With several workers, one is reserved for short work (less than kLongBytes); while long work
///   waits, at least one worker does long work.
/// - Tenants are ordered by the worker time spent on them, least first; clients of one tenant
///   likewise.
/// - The work of one client is ordered by size and age: kBytesPerSecond bytes weigh as much as one
///   second of waiting. (With one worker by age only, and with a tenant's clients treated as one:
///   for users that need the order preserved.)
class WorkQueue {
 public:
  static constexpr std::size_t kLongBytes = 64 << 10;
  static constexpr double kBytesPerSecond = 64 << 10;

  /// Pre: num_workers >= 1. All of them are idle.
  explicit WorkQueue(std::size_t num_workers) : running_(num_workers) {}

  struct Item {
    std::uint64_t number = 0;  ///< chosen by the caller, unique
    std::uint32_t tenant = 0;
    std::uint32_t client = 0;  ///< within the tenant: a key may be shared by several clients
    std::size_t num_bytes = 0;
  };
  void add(const Item& item, double now);

  struct Start {
    std::size_t worker = 0;
    std::uint64_t number = 0;
  };
  /// An idle worker and the work to start; nullopt if there is no such pair.
  [[nodiscard]] std::optional<Start> start_next(double now);
  /// The worker is idle again. Returns its finished work. Pre: start_next gave it some.
  std::uint64_t finish(std::size_t worker, double now);
  /// True if it was queued, and is dropped. Started work continues until `finish`.
  bool remove(std::uint64_t number);

  [[nodiscard]] std::size_t num_waiting() const noexcept { return waiting_.size(); }

 private:
  using Place = std::pair<double, std::uint64_t>;          // its turn, its number
  using Client = std::pair<std::uint32_t, std::uint32_t>;  // the tenant first
  using Lane = std::map<Client, std::set<Place>>;          // none of the sets is empty
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
  /// Of a client with work here; a client that returns starts at the least served one.
  struct Share {
    double spent = 0;  // seconds of worker time
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
  FairShare shares_;  // of tenants, in microseconds of worker time
  std::map<Client, Share> clients_;
};

}  // namespace troupe
