// Random operations on a store of two tiers, with eviction by each policy and files that are
// damaged. TROUPE_TIER_OPERATIONS: how many, 10,000 if it is not set; a thorough run takes 100,000.

#include <array>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/kv_transfer/block_index.hpp"
#include "runtime/kv_transfer/store_connector_worker.hpp"
#include "tests/runtime/kv_transfer/temporary_folder.hpp"

namespace troupe {
namespace {

constexpr BlockOrigin kTierOrigin = {4, 5, 6};
constexpr std::size_t kTierBlockBytes = 96;
constexpr std::int64_t kTierBlobBytes = sizeof(BlobHeader) + kTierBlockBytes;
constexpr std::uint64_t kNumTierKeys = 300;
constexpr std::array<std::int64_t, 2> kTierBlobs = {40, 120};

StoreKey tier_key(std::uint64_t number) {
  StoreKey key;
  key.hash.bytes.fill(static_cast<std::uint8_t>(number));
  key.hash.bytes[1] = static_cast<std::uint8_t>(number >> 8);
  return key;
}

Blob tier_blob(const StoreKey& key) {
  Blob blob = make_blob(kTierOrigin, key, kTierBlockBytes);
  const std::span<std::byte> content = blob_content(blob);
  for (std::size_t i = 0; i < content.size(); ++i)
    content[i] = std::byte{static_cast<std::uint8_t>(key.hash.bytes[i % 2] + i)};
  seal_blob(blob);
  return blob;
}

/// Decides what is where, as StoreKVConnector does, and knows which blocks may be damaged.
class TierModel {
 public:
  TierModel(const BlockFolder& folder, std::uint32_t seed, const char* policy)
      : folder_(folder), random_(seed) {
    std::vector<std::unique_ptr<BlockStore>> stores;
    stores.push_back(make_memory_block_store());
    stores.push_back(make_file_block_store(folder.path().string()));
    transfers_.emplace(std::move(stores), kTierOrigin, std::vector{kTierBlockBytes},
                       std::chrono::minutes(5));
    for (const std::int64_t blobs : kTierBlobs)
      tiers_.emplace_back(blobs * kTierBlobBytes, make_eviction_policy(policy).value());
  }

  void run(std::uint64_t num_operations) {
    for (std::uint64_t i = 0; i < num_operations; ++i) {
      const std::uint64_t choice = random_() % 1000;
      const StoreKey key = tier_key(random_() % kNumTierKeys);
      if (choice < 450) {
        for (std::uint8_t tier = 0; tier < 2; ++tier)
          if (add(key, tier)) transfers_->save(key, tier_blob(key), tier);
      } else if (choice < 880) {
        load();
      } else if (choice < 980) {
        if (tiers_[1].has(key) && add(key, 0)) transfers_->copy(key, 0);
      } else if (choice < 995) {
        forget(key);
      } else if (choice < 999) {
        settle();
        damage();
      } else {
        for (BlockIndex& tier : tiers_) tier.clear();
        suspects_.clear();
        transfers_->clear();
      }
      // Seldom: on a busy machine it waits for its turn, and the other thread for its own.
      if (i % 512 == 511) settle();
      BOOST_REQUIRE((tiers_[0].num_bytes() <= kTierBlobs[0] * kTierBlobBytes &&
                     tiers_[1].num_bytes() <= kTierBlobs[1] * kTierBlobBytes));
    }
    settle();
    transfers_.reset();
    // What lies on the disk is what the index has, but for what has been damaged since.
    const auto sound = [this](const std::vector<StoreKey>& keys) {
      std::set<Hash> hashes;
      for (const StoreKey& key : keys)
        if (!suspects_.contains(key.hash.bytes)) hashes.insert(key.hash.bytes);
      return hashes;
    };
    BOOST_TEST((sound(list_block_files(folder_.path().string())) == sound(tiers_[1].keys())));
    BOOST_TEST(num_loaded_ > num_operations / 4);
    BOOST_TEST(num_failed_ > 0u);
  }

 private:
  using Hash = decltype(BlockHash::bytes);

  bool add(const StoreKey& key, std::uint8_t tier) {
    if (tiers_[tier].touch(key)) return false;
    std::vector<StoreKey> removed;
    const bool fits = tiers_[tier].add(key, kTierBlobBytes, removed);
    for (const StoreKey& old : removed) {
      transfers_->remove(old, tier);
      forgive(old);
    }
    return fits;
  }
  void forget(const StoreKey& key) {
    for (std::uint8_t tier = 0; tier < 2; ++tier)
      if (tiers_[tier].remove(key)) transfers_->remove(key, tier);
    forgive(key);
  }
  /// A block that is nowhere any more will be written anew.
  void forgive(const StoreKey& key) {
    if (!tiers_[0].has(key) && !tiers_[1].has(key)) suspects_.erase(key.hash.bytes);
  }
  void load() {
    BlockLoad load{.number = ++last_load_, .id = RequestId{last_load_}, .blocks = {}};
    for (int i = 0; i < 8 && load.blocks.size() < 3; ++i) {
      const StoreKey key = tier_key(random_() % kNumTierKeys);
      if (tiers_[0].touch(key) | tiers_[1].touch(key)) load.blocks.push_back({key, 0});
    }
    bool is_suspect = false;
    for (const KeyedBlock& block : load.blocks)
      is_suspect |= suspects_.contains(block.key.hash.bytes);
    may_fail_[load.number] = is_suspect;
    transfers_->load(std::move(load));
  }
  /// Until all loads have been reported.
  void settle() {
    transfers_->load({.number = ++last_load_, .id = RequestId{last_load_}, .blocks = {}});
    may_fail_[last_load_] = false;
    while (!may_fail_.empty()) {
      for (BlockTransfers::Loaded& loaded : transfers_->take_loaded()) {
        const auto open = may_fail_.find(loaded.load.number);
        BOOST_REQUIRE(open != may_fail_.end());
        if (loaded.blobs.ok()) {
          BOOST_REQUIRE(loaded.blobs->size() == loaded.load.blocks.size());
          for (std::size_t i = 0; i < loaded.load.blocks.size(); ++i)
            BOOST_REQUIRE((*(*loaded.blobs)[i] == tier_blob(loaded.load.blocks[i].key)));
          ++num_loaded_;
        } else {
          BOOST_REQUIRE_MESSAGE(open->second, loaded.blobs.error().message);
          for (const KeyedBlock& block : loaded.load.blocks) failed_.push_back(block.key);
          ++num_failed_;
        }
        may_fail_.erase(open);
      }
      std::this_thread::yield();
    }
    for (const StoreKey& key : failed_) forget(key);
    failed_.clear();
  }
  void damage() {
    const std::vector<StoreKey> files = tiers_[1].keys();
    if (files.empty()) return;
    const StoreKey key = files[random_() % files.size()];
    const std::string place = make_file_block_store(folder_.path().string())->place_of(key);
    std::error_code is_gone;  // by an earlier damage that nobody has come upon
    if (random_() % 2 == 0)
      std::filesystem::remove(place);
    else
      std::filesystem::resize_file(place, random_() % kTierBlobBytes, is_gone);
    suspects_.insert(key.hash.bytes);
  }

  const BlockFolder& folder_;
  std::mt19937 random_;
  std::vector<BlockIndex> tiers_;
  std::optional<BlockTransfers> transfers_;
  std::uint64_t last_load_ = 0;
  std::map<std::uint64_t, bool> may_fail_;  // loads that are not reported
  std::set<Hash> suspects_;                 // damaged, or copies of them
  std::vector<StoreKey> failed_;
  std::uint64_t num_loaded_ = 0;
  std::uint64_t num_failed_ = 0;
};

BOOST_AUTO_TEST_CASE(random_operations_on_two_tiers_never_give_a_wrong_block_nor_lose_one) {
  const char* const text = std::getenv("TROUPE_TIER_OPERATIONS");
  const std::uint64_t num_operations = text == nullptr ? 10'000 : std::strtoull(text, nullptr, 10);
  for (const char* policy : {"lru", "arc"}) {
    const BlockFolder folder;
    TierModel(folder, 11, policy).run(num_operations / 2);
  }
}

}  // namespace
}  // namespace troupe
