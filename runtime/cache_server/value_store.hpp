#pragma once
// What the cache server holds: values by key, in memory and on disk, each within its limit.

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/cache_server/value.hpp"
#include "runtime/cache_server/value_folder.hpp"
#include "runtime/metrics/registry.hpp"

namespace troupe {

/// Bytes that values may take in memory and on disk; 0: no limit.
struct CacheQuota {
  std::int64_t max_memory_bytes = 0;
  std::int64_t max_disk_bytes = 0;
};

struct CacheStoreConfig {
  CacheQuota total;
  CacheQuota tenant;  ///< of a tenant that `tenants` does not have
  std::unordered_map<std::string, CacheQuota> tenants;
  /// A tag of LMCache's keys whose value is the tenant; empty: keys have none.
  std::string tenant_tag = "tenant";
  std::int64_t max_value_bytes = 0;
};

/// A value is put into memory, and written to the folder if there is one. Each of the two drops
/// what was used least recently: of a tenant over its quota, then of all. A tenant is the owner of
/// keys, or what their tag says. Thread-safe.
class CacheStore {
 public:
  /// `folder` may be null. What lies in it is there at once.
  CacheStore(CacheStoreConfig config, std::unique_ptr<CacheFolder> folder, Registry& metrics);
  ~CacheStore();
  CacheStore(const CacheStore&) = delete;
  CacheStore& operator=(const CacheStore&) = delete;

  /// Memory for a value that is to be received, taken from the limit at once.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept = default;
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(store_, other.store_);
      value_.swap(other.value_);
      return *this;
    }
    ~Reservation() {
      if (value_ != nullptr) store_->cancel(*value_);
    }
    /// False: the value is too large, or too much is being received.
    [[nodiscard]] bool granted() const noexcept { return value_ != nullptr; }
    [[nodiscard]] std::span<char> bytes() noexcept { return value_->bytes(); }

   private:
    friend class CacheStore;
    CacheStore* store_ = nullptr;
    std::shared_ptr<CacheValue> value_;
  };
  [[nodiscard]] Reservation reserve(const lmcache::TensorInfo& info, std::int64_t num_bytes);
  /// Replaces what is there. Pre: granted, and the bytes are written.
  void put(const CacheKey& key, Reservation reservation);

  [[nodiscard]] bool has(const CacheKey& key);
  struct Found {
    CacheValuePtr value;   ///< null: it is not in memory
    bool on_disk = false;  ///< load() gets it
  };
  [[nodiscard]] Found get(const CacheKey& key);
  /// Reads it from disk; `done` is called from another thread, with null if it is lost.
  void load(const CacheKey& key, CacheFolder::Read done);

  struct Usage {
    std::size_t num_values = 0;
    std::int64_t memory_bytes = 0;
    std::int64_t disk_bytes = 0;
  };
  [[nodiscard]] Usage usage();
  /// Of one tenant.
  [[nodiscard]] Usage usage(const std::string& tenant);

 private:
  struct Entry;
  using Order = std::list<Entry*>;  // the latest used one last
  enum Tier : std::uint8_t { kMemory, kDisk };
  static constexpr std::size_t kNumTiers = 2;
  static constexpr std::int64_t kEntryBytes = 512;  // of an entry without its value

  struct Tenant {
    std::string name;
    std::array<std::int64_t, kNumTiers> max_bytes{};
    std::array<std::int64_t, kNumTiers> bytes{};
    std::array<Order, kNumTiers> order;
    std::size_t num_entries = 0;
  };
  struct Entry {
    CacheKey key;
    Tenant* tenant = nullptr;
    CacheValuePtr value;                      // null: it is not in memory
    std::weak_ptr<const CacheValue> writing;  // not yet on disk
    bool written = false;
    std::array<std::int64_t, kNumTiers> bytes{};  // 0: it is not there
    std::array<Order::iterator, kNumTiers> in_all;
    std::array<Order::iterator, kNumTiers> in_tenant;
  };
  struct KeyHash {
    std::size_t operator()(const CacheKey& key) const noexcept;
  };

  [[nodiscard]] std::string tenant_of(const CacheKey& key) const;
  Entry& entry_of(const CacheKey& key);
  void insert(Entry& entry, Tier tier, std::int64_t num_bytes);
  /// Drops it from there, and the entry if it is nowhere else.
  void drop(Entry& entry, Tier tier);
  void touch(Entry& entry);
  void cancel(const CacheValue& value);
  void make_room(Tier tier, Tenant* tenant, std::int64_t num_bytes);
  void set_gauges();
  void on_written(const CacheKey& key, const CacheValuePtr& value, bool written);

  const CacheStoreConfig config_;
  std::mutex mutex_;  // guards what follows
  std::unordered_map<CacheKey, std::unique_ptr<Entry>, KeyHash> entries_;
  std::unordered_map<std::string, std::unique_ptr<Tenant>> tenants_;
  std::array<std::int64_t, kNumTiers> bytes_{};
  std::int64_t receiving_bytes_ = 0;
  std::array<Order, kNumTiers> order_;
  std::array<Metric*, kNumTiers> evictions_{};
  std::array<Metric*, kNumTiers> stored_bytes_{};
  Metric& num_values_;
  Metric& skipped_writes_;
  Metric& failed_reads_;
  std::unique_ptr<CacheFolder> folder_;  // destroyed first: its threads call back
};

}  // namespace troupe
