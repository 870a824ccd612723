#include "runtime/kv_transfer/store_connector_worker.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/kv_transfer/model_identity.hpp"

namespace troupe {

// ---- BlockTransfers -----------------------------------------------------------------------------

/// What the thread works on. It outlives a BlockTransfers whose thread hangs in it.
class BlockTransfers::Store {
 public:
  Store(std::vector<std::unique_ptr<BlockStore>> tiers, const BlockOrigin& origin,
        std::vector<std::size_t> block_bytes)
      : tiers_(std::move(tiers)), origin_(origin), block_bytes_(std::move(block_bytes)) {}

  [[nodiscard]] std::optional<Loaded> perform(Job& job);

 private:
  [[nodiscard]] Loaded load(BlockLoad& load);
  void load_layers(const Layers& layers);
  Result<void> move(const Move& move);
  void save(const StoreKey& key, Blob blob, std::uint8_t tier);
  [[nodiscard]] Result<std::vector<std::shared_ptr<const Blob>>> read(const BlockLoad& load,
                                                                      bool checks_content = true);
  [[nodiscard]] Result<std::vector<std::shared_ptr<const Blob>>> read_blocks(
      std::span<const StoreKey> keys, std::size_t first_tier, bool checks_content = true);

  std::vector<std::unique_ptr<BlockStore>> tiers_;
  BlockOrigin origin_;
  std::vector<std::size_t> block_bytes_;  // per group
  std::optional<Error> move_error_;       // the first one
};

BlockTransfers::BlockTransfers(std::vector<std::unique_ptr<BlockStore>> tiers,
                               const BlockOrigin& origin, std::vector<std::size_t> block_bytes,
                               std::chrono::milliseconds load_timeout)
    : load_timeout_(load_timeout),
      thread_([store = std::make_shared<Store>(std::move(tiers), origin, std::move(block_bytes))](
                  Job& job) { return store->perform(job); },
              [](const Job& job) {
                return std::holds_alternative<BlockLoad>(job) ||
                       std::holds_alternative<Layers>(job);
              }) {}

void BlockTransfers::load(BlockLoad load) {
  // One without blocks waits for all before it, as long as they go on.
  open_loads_.add(load, load.blocks.empty() ? open_loads_.kNoLimit : load_timeout_);
  thread_.add(std::move(load));
}
void BlockTransfers::load_layers(BlockLoad load, std::shared_ptr<LayeredLoad> state,
                                 std::size_t num_layers, CopyLayer copy) {
  thread_.add(Layers{std::move(load), std::move(state), num_layers, std::move(copy)});
}
void BlockTransfers::remove(const StoreKey& key, std::uint8_t tier) {
  thread_.add(Removal{key, tier});
}
void BlockTransfers::copy(const StoreKey& key, std::uint8_t tier) { thread_.add(Copy{key, tier}); }
void BlockTransfers::clear() { thread_.add(Clearing{}); }
void BlockTransfers::export_block(const StoreKey& key, std::shared_ptr<BlockStore> folder) {
  thread_.add(Move{key, /*is_import=*/false, 0, std::move(folder)});
}
void BlockTransfers::import_block(const StoreKey& key, std::shared_ptr<BlockStore> folder,
                                  std::uint8_t tier) {
  thread_.add(Move{key, /*is_import=*/true, tier, std::move(folder)});
}

void BlockTransfers::save(const StoreKey& key, Blob blob, std::uint8_t tier) {
  const std::size_t num_bytes = blob.size();
  thread_.add(Save{key, std::move(blob), tier}, num_bytes);
}

std::vector<BlockTransfers::Loaded> BlockTransfers::take_loaded() {
  std::vector<Loaded> all = thread_.take_done();
  std::erase_if(all,
                [this](const Loaded& loaded) { return !open_loads_.remove(loaded.load.number); });
  for (BlockLoad& late : open_loads_.take_late(thread_.hangs(load_timeout_))) {
    log_warning("blocks of the KV cache are not there in time", kv("request", late.id),
                kv("limit_ms", load_timeout_.count()));
    all.push_back({std::move(late), Error{ErrorCode::kTimeout, "it takes too long", {}}});
  }
  return all;
}

std::optional<BlockTransfers::Loaded> BlockTransfers::Store::perform(Job& job) {
  if (auto* const load_job = std::get_if<BlockLoad>(&job)) return load(*load_job);
  if (const auto* const layers = std::get_if<Layers>(&job)) {
    load_layers(*layers);
  } else if (auto* const save_job = std::get_if<Save>(&job)) {
    seal_blob(save_job->blob);
    save(save_job->key, std::move(save_job->blob), save_job->tier);
  } else if (const auto* const removal = std::get_if<Removal>(&job)) {
    tiers_.at(removal->tier)->remove(removal->key);
  } else if (const auto* const copy = std::get_if<Copy>(&job)) {
    const auto blobs = read_blocks({&copy->key, 1}, copy->tier + std::size_t{1});
    if (blobs.ok()) save(copy->key, *blobs->front(), copy->tier);
  } else if (const auto* const move_job = std::get_if<Move>(&job)) {
    const auto moved = move(*move_job);
    if (!moved.ok() && !move_error_) move_error_ = moved.error();
  } else {
    for (const auto& store : tiers_) store->clear();
  }
  return std::nullopt;
}

BlockTransfers::Loaded BlockTransfers::Store::load(BlockLoad& load) {
  auto blobs = read(load);
  if (const auto error = std::exchange(move_error_, {}); error && load.blocks.empty())
    blobs = *error;
  if (!blobs.ok())
    log_warning("blocks of the KV cache cannot be loaded", kv("request", load.id),
                kv("reason", blobs.error().message));
  return {std::move(load), std::move(blobs)};
}

/// The step that waits for it does not count if something is wrong with a blob.
void BlockTransfers::Store::load_layers(const Layers& layers) {
  const auto loaded = [&]() -> Result<void> {
    ASSIGN_OR_RETURN(const auto blobs, read(layers.load, /*checks_content=*/false));
    for (std::size_t layer = 0; layer < layers.num_layers; ++layer)
      if (!layers.state->put_layer(layer, [&] { layers.copy(layer, blobs); }))
        return Error{ErrorCode::kTimeout, "it has taken too long", {}};
    for (std::size_t i = 0; i < blobs.size(); ++i) {
      const StoreKey& key = layers.load.blocks[i].key;
      auto checked =
          check_blob(*blobs[i], origin_, key, block_bytes_.at(static_cast<std::size_t>(key.group)));
      if (checked.ok()) continue;
      for (const auto& tier : tiers_) tier->remove(key);
      return std::move(checked).error();
    }
    return {};
  }();
  if (!loaded.ok())
    log_warning("blocks of the KV cache cannot be loaded", kv("request", layers.load.id),
                kv("reason", loaded.error().message));
  layers.state->end(loaded.ok());
}

Result<void> BlockTransfers::Store::move(const Move& move) {
  if (!move.is_import) {
    ASSIGN_OR_RETURN(const auto blobs, read_blocks({&move.key, 1}, 0));
    return move.folder->save(move.key, *blobs.front());
  }
  ASSIGN_OR_RETURN(const auto blob, move.folder->load(move.key));
  const auto group = static_cast<std::size_t>(move.key.group);
  if (auto checked = check_blob(*blob, origin_, move.key, block_bytes_.at(group)); !checked.ok())
    return Error{
        checked.error().code, move.folder->place_of(move.key) + ": " + checked.error().message, {}};
  return tiers_.at(move.tier)->save(move.key, *blob);
}

/// What cannot be saved is missed when it is to be loaded.
void BlockTransfers::Store::save(const StoreKey& key, Blob blob, std::uint8_t tier) {
  const auto saved = tiers_.at(tier)->save(key, std::move(blob));
  if (!saved.ok())
    log_warning("a block of the KV cache cannot be saved", kv("reason", saved.error().message));
}

Result<std::vector<std::shared_ptr<const Blob>>> BlockTransfers::Store::read(const BlockLoad& load,
                                                                             bool checks_content) {
  std::vector<StoreKey> keys;
  for (const KeyedBlock& block : load.blocks) keys.push_back(block.key);
  return read_blocks(keys, 0, checks_content);
}

/// From the first tier that has each. A blob that is not as it should be is removed. Errors: of the
/// last tier.
Result<std::vector<std::shared_ptr<const Blob>>> BlockTransfers::Store::read_blocks(
    std::span<const StoreKey> keys, std::size_t first_tier, bool checks_content) {
  std::vector<std::shared_ptr<const Blob>> blobs(keys.size());
  std::optional<Error> error;
  std::vector<StoreKey> missing(keys.begin(), keys.end());
  std::vector<std::size_t> places(keys.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  for (std::size_t tier = first_tier; tier < tiers_.size() && !missing.empty(); ++tier) {
    BlockStore& store = *tiers_[tier];
    auto found = store.load_all(missing);
    std::vector<StoreKey> left;
    std::vector<std::size_t> left_places;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const StoreKey& key = missing[i];
      if (found[i].ok()) {
        const auto group = static_cast<std::size_t>(key.group);
        const auto check = checks_content ? check_blob : check_blob_header;
        const auto checked = check(**found[i], origin_, key, block_bytes_.at(group));
        if (checked.ok()) {
          blobs[places[i]] = *std::move(found[i]);
          continue;
        }
        store.remove(key);
        error =
            Error{checked.error().code, store.place_of(key) + ": " + checked.error().message, {}};
      } else {
        error = std::move(found[i]).error();
      }
      left.push_back(key);
      left_places.push_back(places[i]);
    }
    missing = std::move(left);
    places = std::move(left_places);
  }
  if (missing.empty()) return blobs;
  CHECK(error.has_value(), first_tier, tiers_.size());
  return *std::move(error);
}

// ---- StoreKVConnectorWorker ---------------------------------------------------------------------

StoreKVConnectorWorker::StoreKVConnectorWorker(KVConnectorWorkerContext context,
                                               OpenBlockStores open,
                                               std::chrono::milliseconds load_timeout, bool layered)
    : context_(std::move(context)),
      open_(std::move(open)),
      load_timeout_(load_timeout),
      layered_(layered),
      copier_(layered ? std::make_unique<LayerCopier>() : nullptr) {}

Result<void> StoreKVConnectorWorker::register_kv_caches(const KVCacheMemory& memory) {
  start_step();
  transfers_.reset();
  ops_.clear();
  loads_.clear();
  memory_ = memory;
  if (layered_ && !memory.device->is_host())
    return Error{ErrorCode::kUnsupported,
                 "kv-transfer-config: use_layerwise is for caches in the memory of the host",
                 "kv-transfer-config"};
  origin_ = block_origin(context_.model_identity, memory.config, context_.parallel);
  std::vector<std::size_t> block_bytes;
  for (std::size_t g = 0; g < memory.groups.size(); ++g)
    block_bytes.push_back(static_cast<std::size_t>(memory.block_bytes(g)));
  ASSIGN_OR_RETURN(auto tiers, open_(memory.config));
  transfers_ = std::make_unique<BlockTransfers>(std::move(tiers), origin_, std::move(block_bytes),
                                                load_timeout_);
  return {};
}

void StoreKVConnectorWorker::start_load_kv(const std::string& metadata) {
  CHECK(transfers_ != nullptr);
  std::optional<StoreOps> ops = unpack_store_ops(metadata);
  CHECK(ops.has_value(), metadata.size());
  std::erase_if(loads_, [&](std::uint64_t number) { return number < ops->oldest_load; });
  for (BlockLoad& load : ops->loads) {
    if (!loads_.insert(load.number).second) continue;
    if (load.is_layered)
      start_layered(std::move(load));
    else
      transfers_->load(std::move(load));
  }
  ops_ = std::move(ops->ops);
  if (layered_) begin_saves();
  folder_.reset();
  if (ops->folder.empty()) return;
  folder_ = make_file_block_store(
      ops->folder + "/" +
      origin_folder(context_.model_identity, memory_.config, context_.parallel));
}

/// Of what an earlier step has begun, as it has failed, nothing counts.
void StoreKVConnectorWorker::start_step() {
  if (!layered_) return;
  step_loads_.drop();
  copier_->drop();
  saves_.clear();
}

void StoreKVConnectorWorker::start_layered(BlockLoad load) {
  auto state = std::make_shared<LayeredLoad>();
  std::vector<BlockId> ids;
  for (const KeyedBlock& block : load.blocks) ids.push_back(block.block);
  step_loads_.add(load.id, std::move(ids), state, load_timeout_);
  const std::vector<PlacedLayer> order = layers_in_order(memory_);
  const auto copy = [groups = memory_.groups, order, blocks = load.blocks](
                        std::size_t place, std::span<const std::shared_ptr<const Blob>> blobs) {
    const auto [number, group, index] = order[place];
    const std::vector<KVCacheMemory::Layer>& layers = groups[group];
    std::size_t begin = 0;
    for (std::size_t i = 0; i < index; ++i) begin += static_cast<std::size_t>(layers[i].page_bytes);
    const auto num_bytes = static_cast<std::size_t>(layers[index].page_bytes);
    for (std::size_t i = 0; i < blocks.size(); ++i)
      if (std::cmp_equal(blocks[i].key.group, group))
        std::memcpy(layers[index].data + blocks[i].block * layers[index].page_bytes,
                    blob_content(*blobs[i]).data() + begin, num_bytes);
  };
  transfers_->load_layers(std::move(load), std::move(state), order.size(), copy);
}

void StoreKVConnectorWorker::begin_saves() {
  for (const StoreOp& op : ops_)
    if (op.kind == StoreOpKind::kSave)
      saves_.push_back(make_blob(origin_, op.block.key,
                                 static_cast<std::size_t>(memory_.block_bytes(
                                     static_cast<std::size_t>(op.block.key.group)))));
  if (!saves_.empty())
    copier_->begin(memory_, [this](std::size_t group, std::size_t i) { copy_layer(group, i); });
}

void StoreKVConnectorWorker::wait_for_layer_load(std::int32_t layer) {
  step_loads_.wait_for_layer(memory_, layer);
}

/// Nobody changes these pages any more in this step.
void StoreKVConnectorWorker::save_kv_layer(std::int32_t layer) {
  if (copier_ != nullptr) copier_->add(layer);
}

/// To the blobs of the step.
void StoreKVConnectorWorker::copy_layer(std::size_t group, std::size_t index) {
  const std::vector<KVCacheMemory::Layer>& layers = memory_.groups[group];
  std::size_t begin = 0;
  for (std::size_t i = 0; i < index; ++i) begin += static_cast<std::size_t>(layers[i].page_bytes);
  std::size_t save = 0;
  for (const StoreOp& op : ops_) {
    if (op.kind != StoreOpKind::kSave) continue;
    Blob& blob = saves_[save++];
    if (!std::cmp_equal(op.block.key.group, group)) continue;
    std::memcpy(blob_content(blob).data() + begin,
                layers[index].data + op.block.block * layers[index].page_bytes,
                static_cast<std::size_t>(layers[index].page_bytes));
  }
}

void StoreKVConnectorWorker::wait_for_save() {
  if (ops_.empty()) return;
  // In the order of the operations: what goes makes room for what comes.
  std::vector<Blob> blobs;
  if (layered_) {
    copier_->finish();
    blobs = std::exchange(saves_, {});
  }
  for (const StoreOp& op : ops_)
    if (!layered_ && op.kind == StoreOpKind::kSave) blobs.push_back(read_block(op.block));
  if (!memory_.device->is_host() && !memory_.device->synchronize().ok()) return ops_.clear();
  auto blob = blobs.begin();
  for (const StoreOp& op : std::exchange(ops_, {})) {
    switch (op.kind) {
      case StoreOpKind::kSave:
        transfers_->save(op.block.key, std::move(*blob++), op.tier);
        break;
      case StoreOpKind::kRemove:
        transfers_->remove(op.block.key, op.tier);
        break;
      case StoreOpKind::kCopy:
        transfers_->copy(op.block.key, op.tier);
        break;
      case StoreOpKind::kClear:
        transfers_->clear();
        break;
      case StoreOpKind::kExport:
        transfers_->export_block(op.block.key, folder_);
        break;
      case StoreOpKind::kImport:
        transfers_->import_block(op.block.key, folder_, op.tier);
        break;
    }
  }
}

KVConnectorOutput StoreKVConnectorWorker::get_finished() {
  KVConnectorOutput output;
  if (transfers_ == nullptr) return output;
  step_loads_.report(output);
  for (const BlockTransfers::Loaded& loaded : transfers_->take_loaded()) {
    output.finished_recving.push_back(loaded.load.id);
    if (loaded.blobs.ok()) {
      for (std::size_t i = 0; i < loaded.load.blocks.size(); ++i)
        write_block(loaded.load.blocks[i], *(*loaded.blobs)[i]);
    } else {
      output.failed_recving.push_back(loaded.load.id);
    }
  }
  return output;
}

Blob StoreKVConnectorWorker::read_block(const KeyedBlock& block) {
  const auto group = static_cast<std::size_t>(block.key.group);
  Blob blob = make_blob(origin_, block.key, static_cast<std::size_t>(memory_.block_bytes(group)));
  std::byte* to = blob_content(blob).data();
  for (const KVCacheMemory::Layer& layer : memory_.groups.at(group)) {
    const auto num_bytes = static_cast<std::size_t>(layer.page_bytes);
    memory_.device->copy_to_host(to, layer.data + block.block * layer.page_bytes, num_bytes);
    to += num_bytes;
  }
  return blob;
}

void StoreKVConnectorWorker::write_block(const KeyedBlock& block, const Blob& blob) {
  const std::byte* from = blob_content(blob).data();
  for (const KVCacheMemory::Layer& layer :
       memory_.groups.at(static_cast<std::size_t>(block.key.group))) {
    const auto num_bytes = static_cast<std::size_t>(layer.page_bytes);
    memory_.device->copy_to_device(layer.data + block.block * layer.page_bytes, from, num_bytes);
    from += num_bytes;
  }
}

}  // namespace troupe
