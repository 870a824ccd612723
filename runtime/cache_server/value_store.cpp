#include "runtime/cache_server/value_store.hpp"

#include <algorithm>

#include "runtime/base/keyed_hash.hpp"

namespace troupe {

std::size_t CacheStore::KeyHash::operator()(const CacheKey& key) const noexcept {
  return keyed_hash(key.key) ^ (key.owner.empty() ? 0 : 3 * keyed_hash(key.owner));
}

CacheStore::CacheStore(CacheStoreConfig config, std::unique_ptr<CacheFolder> folder,
                       Registry& metrics)
    : config_(std::move(config)),
      num_values_(metrics.gauge("troupe_cache_values", "Values that are stored.", {})),
      skipped_writes_(metrics.counter("troupe_cache_skipped_writes",
                                      "Values that were not written to disk: too much waited, or "
                                      "the disk failed.",
                                      {})),
      failed_reads_(metrics.counter("troupe_cache_failed_reads",
                                    "Values that were lost or corrupt on disk.", {})),
      folder_(std::move(folder)) {
  for (const Tier tier : {kMemory, kDisk}) {
    const Labels labels = {{"tier", tier == kMemory ? "memory" : "disk"}};
    evictions_[tier] = &metrics.counter("troupe_cache_evictions",
                                        "Values that were dropped to make room.", labels);
    stored_bytes_[tier] = &metrics.gauge("troupe_cache_bytes", "Bytes that are stored.", labels);
  }
  if (folder_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  for (CacheFolder::Entry& found : folder_->scan()) {
    Entry& entry = entry_of(found.key);
    entry.written = true;
    insert(entry, kDisk, static_cast<std::int64_t>(found.file_bytes));
  }
  set_gauges();
  folder_->start([this](const CacheKey& key, const CacheValuePtr& value, bool written) {
    on_written(key, value, written);
  });
}

CacheStore::~CacheStore() { folder_.reset(); }

std::string CacheStore::tenant_of(const CacheKey& key) const {
  if (!key.owner.empty() || config_.tenant_tag.empty()) return key.owner;
  const std::string mark = '@' + config_.tenant_tag + '%';
  const std::size_t at = key.key.find(mark);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + mark.size();
  return key.key.substr(begin, key.key.find('@', begin) - begin);
}

CacheStore::Entry& CacheStore::entry_of(const CacheKey& key) {
  const auto found = entries_.find(key);
  if (found != entries_.end()) return *found->second;
  Entry& entry = *entries_.emplace(key, std::make_unique<Entry>()).first->second;
  entry.key = key;
  std::string name = tenant_of(key);
  std::unique_ptr<Tenant>& tenant = tenants_[name];
  if (tenant == nullptr) {
    const auto own = config_.tenants.find(name);
    const CacheQuota& quota = own == config_.tenants.end() ? config_.tenant : own->second;
    tenant = std::make_unique<Tenant>();
    tenant->name = std::move(name);
    tenant->max_bytes = {quota.max_memory_bytes, quota.max_disk_bytes};
  }
  entry.tenant = tenant.get();
  ++tenant->num_entries;
  return entry;
}

void CacheStore::insert(Entry& entry, Tier tier, std::int64_t num_bytes) {
  Tenant& tenant = *entry.tenant;
  entry.bytes[tier] = num_bytes;
  entry.in_all[tier] = order_[tier].insert(order_[tier].end(), &entry);
  entry.in_tenant[tier] = tenant.order[tier].insert(tenant.order[tier].end(), &entry);
  bytes_[tier] += num_bytes;
  tenant.bytes[tier] += num_bytes;
  make_room(tier, &tenant, 0);
}

void CacheStore::drop(Entry& entry, Tier tier) {
  Tenant& tenant = *entry.tenant;
  order_[tier].erase(entry.in_all[tier]);
  tenant.order[tier].erase(entry.in_tenant[tier]);
  bytes_[tier] -= entry.bytes[tier];
  tenant.bytes[tier] -= entry.bytes[tier];
  entry.bytes[tier] = 0;
  if (tier == kMemory) {
    entry.value.reset();
  } else {
    entry.written = false;
    entry.writing.reset();
    folder_->remove(entry.key);
  }
  if (entry.bytes[kMemory] != 0 || entry.bytes[kDisk] != 0) return;
  if (--tenant.num_entries == 0) tenants_.erase(std::string(tenant.name));
  entries_.erase(CacheKey(entry.key));
}

void CacheStore::touch(Entry& entry) {
  for (const Tier tier : {kMemory, kDisk}) {
    if (entry.bytes[tier] == 0) continue;
    Order& all = order_[tier];
    Order& own = entry.tenant->order[tier];
    all.splice(all.end(), all, entry.in_all[tier]);
    own.splice(own.end(), own, entry.in_tenant[tier]);
  }
}

/// For so many bytes more. `tenant` null: of the total only.
void CacheStore::make_room(Tier tier, Tenant* tenant, std::int64_t num_bytes) {
  const std::int64_t max_bytes =
      tier == kMemory ? config_.total.max_memory_bytes : config_.total.max_disk_bytes;
  if (tenant != nullptr && tenant->max_bytes[tier] > 0) {
    // The tenant goes with its last entry.
    for (bool last = false; !last && tenant->bytes[tier] > tenant->max_bytes[tier];) {
      last = tenant->num_entries == 1;
      evictions_[tier]->add();
      drop(*tenant->order[tier].front(), tier);
    }
  }
  const auto used = [&] { return bytes_[tier] + (tier == kMemory ? receiving_bytes_ : 0); };
  while (max_bytes > 0 && used() + num_bytes > max_bytes && !order_[tier].empty()) {
    evictions_[tier]->add();
    drop(*order_[tier].front(), tier);
  }
}

void CacheStore::set_gauges() {
  for (const Tier tier : {kMemory, kDisk})
    stored_bytes_[tier]->set(static_cast<double>(bytes_[tier]));
  num_values_.set(static_cast<double>(entries_.size()));
}

CacheStore::Reservation CacheStore::reserve(const lmcache::TensorInfo& info,
                                            std::int64_t num_bytes) {
  const std::int64_t max_bytes = config_.total.max_memory_bytes;
  const std::int64_t taken = num_bytes + kEntryBytes;
  Reservation reservation;
  if (config_.max_value_bytes > 0 && num_bytes > config_.max_value_bytes) return reservation;
  {
    const std::lock_guard lock(mutex_);
    if (max_bytes > 0 && receiving_bytes_ + taken > max_bytes) return reservation;
    make_room(kMemory, nullptr, taken);
    receiving_bytes_ += taken;
  }
  reservation.store_ = this;
  reservation.value_ = std::make_shared<CacheValue>(info, static_cast<std::size_t>(num_bytes));
  return reservation;
}

void CacheStore::cancel(const CacheValue& value) {
  const std::lock_guard lock(mutex_);
  receiving_bytes_ -= static_cast<std::int64_t>(value.size()) + kEntryBytes;
}

void CacheStore::put(const CacheKey& key, Reservation reservation) {
  CacheValuePtr kept = std::move(reservation.value_);
  const std::int64_t num_bytes = static_cast<std::int64_t>(kept->size()) + kEntryBytes;
  CacheValuePtr old;  // freed without the lock
  const std::lock_guard lock(mutex_);
  receiving_bytes_ -= num_bytes;
  if (const auto found = entries_.find(key); found != entries_.end()) {
    Entry& entry = *found->second;
    old = entry.value;
    const bool in_memory = entry.bytes[kMemory] != 0;
    // What is on disk is the old one.
    if (entry.bytes[kDisk] != 0) drop(entry, kDisk);
    if (in_memory) drop(entry, kMemory);
  }
  if (folder_ != nullptr) {
    const auto file_bytes = static_cast<std::int64_t>(CacheFolder::file_bytes(key, kept->size()));
    const auto fits = [&](std::int64_t limit) { return limit == 0 || file_bytes <= limit; };
    const auto own = config_.tenants.find(tenant_of(key));
    const CacheQuota& quota = own == config_.tenants.end() ? config_.tenant : own->second;
    if (fits(config_.total.max_disk_bytes) && fits(quota.max_disk_bytes)) {
      // First the files that make room go, then it is written: the folder keeps the order.
      Entry& entry = entry_of(key);
      entry.writing = kept;
      insert(entry, kDisk, file_bytes);
      if (!folder_->write(key, kept)) {
        skipped_writes_.add();
        drop(entry, kDisk);
      }
    }
  }
  Entry& entry = entry_of(key);
  entry.value = std::move(kept);
  insert(entry, kMemory, num_bytes);
  set_gauges();
}

bool CacheStore::has(const CacheKey& key) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  touch(*found->second);
  return true;
}

CacheStore::Found CacheStore::get(const CacheKey& key) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return {};
  Entry& entry = *found->second;
  touch(entry);
  if (entry.value != nullptr) return {entry.value, false};
  if (entry.written) return {nullptr, true};
  return {entry.writing.lock(), false};
}

void CacheStore::load(const CacheKey& key, CacheFolder::Read done) {
  folder_->read(key, [this, key, done = std::move(done)](CacheValuePtr value) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = entries_.find(key);
      if (value == nullptr) failed_reads_.add();
      if (found != entries_.end() && found->second->written) {
        Entry& entry = *found->second;
        if (value == nullptr) {
          drop(entry, kDisk);
        } else if (entry.value == nullptr) {
          entry.value = value;
          insert(entry, kMemory, static_cast<std::int64_t>(value->size()) + kEntryBytes);
        }
      }
      set_gauges();
    }
    done(std::move(value));
  });
}

void CacheStore::on_written(const CacheKey& key, const CacheValuePtr& value, bool written) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  // Otherwise it was dropped or replaced meanwhile, and its removal waits in the folder.
  if (found == entries_.end() || found->second->writing.lock() != value) return;
  Entry& entry = *found->second;
  entry.writing.reset();
  entry.written = written;
  if (written) return;
  skipped_writes_.add();
  drop(entry, kDisk);
  set_gauges();
}

CacheStore::Usage CacheStore::usage() {
  const std::lock_guard lock(mutex_);
  return {entries_.size(), bytes_[kMemory], bytes_[kDisk]};
}

CacheStore::Usage CacheStore::usage(const std::string& tenant) {
  const std::lock_guard lock(mutex_);
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return {};
  const Tenant& own = *found->second;
  return {own.num_entries, own.bytes[kMemory], own.bytes[kDisk]};
}

}  // namespace troupe
