#include "runtime/kv_transfer/store_connector_worker.hpp"

#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/kv_transfer/model_identity.hpp"

namespace troupe {

// ---- BlockTransfers -----------------------------------------------------------------------------

BlockTransfers::BlockTransfers(std::vector<std::unique_ptr<BlockStore>> tiers,
                               const BlockOrigin& origin, std::vector<std::size_t> block_bytes)
    : tiers_(std::move(tiers)),
      origin_(origin),
      block_bytes_(std::move(block_bytes)),
      thread_([this](Job& job) { perform(job); },
              [](const Job& job) { return std::holds_alternative<BlockLoad>(job); }) {}

void BlockTransfers::load(BlockLoad load) { thread_.add(std::move(load)); }
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

void BlockTransfers::perform(Job& job) {
  if (auto* const load = std::get_if<BlockLoad>(&job)) {
    auto blobs = read(*load);
    if (const auto error = std::exchange(move_error_, {}); error && load->blocks.empty())
      blobs = *error;
    if (!blobs.ok())
      log_warning("blocks of the KV cache cannot be loaded", kv("request", load->id),
                  kv("reason", blobs.error().message));
    thread_.deliver({std::move(*load), std::move(blobs)});
  } else if (auto* const save = std::get_if<Save>(&job)) {
    seal_blob(save->blob);
    save_now(save->key, std::move(save->blob), save->tier);
  } else if (const auto* const removal = std::get_if<Removal>(&job)) {
    tiers_.at(removal->tier)->remove(removal->key);
  } else if (const auto* const copy = std::get_if<Copy>(&job)) {
    const auto blob = read_block(copy->key, copy->tier + std::size_t{1});
    if (blob.ok()) save_now(copy->key, **blob, copy->tier);
  } else if (const auto* const move = std::get_if<Move>(&job)) {
    const auto moved = move_now(*move);
    if (!moved.ok() && !move_error_) move_error_ = moved.error();
  } else {
    for (const auto& store : tiers_) store->clear();
  }
}

Result<void> BlockTransfers::move_now(const Move& move) {
  if (!move.is_import) {
    ASSIGN_OR_RETURN(const auto blob, read_block(move.key, 0));
    return move.folder->save(move.key, *blob);
  }
  ASSIGN_OR_RETURN(const auto blob, move.folder->load(move.key));
  const auto group = static_cast<std::size_t>(move.key.group);
  if (auto checked = check_blob(*blob, origin_, move.key, block_bytes_.at(group)); !checked.ok())
    return Error{
        checked.error().code, move.folder->place_of(move.key) + ": " + checked.error().message, {}};
  return tiers_.at(move.tier)->save(move.key, *blob);
}

/// What cannot be saved is missed when it is to be loaded.
void BlockTransfers::save_now(const StoreKey& key, Blob blob, std::uint8_t tier) {
  const auto saved = tiers_.at(tier)->save(key, std::move(blob));
  if (!saved.ok())
    log_warning("a block of the KV cache cannot be saved", kv("reason", saved.error().message));
}

Result<std::vector<std::shared_ptr<const Blob>>> BlockTransfers::read(const BlockLoad& load) {
  std::vector<std::shared_ptr<const Blob>> blobs;
  for (const KeyedBlock& block : load.blocks) {
    ASSIGN_OR_RETURN(std::shared_ptr<const Blob> blob, read_block(block.key, 0));
    blobs.push_back(std::move(blob));
  }
  return blobs;
}

/// A blob that is not as it should be is removed. Errors: of the last tier.
Result<std::shared_ptr<const Blob>> BlockTransfers::read_block(const StoreKey& key,
                                                               std::size_t first_tier) {
  std::optional<Error> error;
  for (std::size_t tier = first_tier; tier < tiers_.size(); ++tier) {
    BlockStore& store = *tiers_[tier];
    auto blob = store.load(key);
    if (!blob.ok()) {
      error = std::move(blob).error();
      continue;
    }
    const auto group = static_cast<std::size_t>(key.group);
    const auto checked = check_blob(**blob, origin_, key, block_bytes_.at(group));
    if (checked.ok()) return blob;
    store.remove(key);
    error = Error{checked.error().code, store.place_of(key) + ": " + checked.error().message, {}};
  }
  CHECK(error.has_value(), first_tier, tiers_.size());
  return *std::move(error);
}

// ---- StoreKVConnectorWorker ---------------------------------------------------------------------

StoreKVConnectorWorker::StoreKVConnectorWorker(KVConnectorWorkerContext context,
                                               OpenBlockStores open)
    : context_(std::move(context)), open_(std::move(open)) {}

Result<void> StoreKVConnectorWorker::register_kv_caches(const KVCacheMemory& memory) {
  transfers_.reset();
  ops_.clear();
  loads_.clear();
  memory_ = memory;
  origin_ = block_origin(context_.model_identity, memory.config, context_.parallel);
  std::vector<std::size_t> block_bytes;
  for (std::size_t g = 0; g < memory.groups.size(); ++g)
    block_bytes.push_back(static_cast<std::size_t>(memory.block_bytes(g)));
  ASSIGN_OR_RETURN(auto tiers, open_(memory.config));
  transfers_ = std::make_unique<BlockTransfers>(std::move(tiers), origin_, std::move(block_bytes));
  return {};
}

void StoreKVConnectorWorker::start_load_kv(const std::string& metadata) {
  CHECK(transfers_ != nullptr);
  std::optional<StoreOps> ops = unpack_store_ops(metadata);
  CHECK(ops.has_value(), metadata.size());
  std::erase_if(loads_, [&](std::uint64_t number) { return number < ops->oldest_load; });
  for (BlockLoad& load : ops->loads)
    if (loads_.insert(load.number).second) transfers_->load(std::move(load));
  ops_ = std::move(ops->ops);
  folder_.reset();
  if (ops->folder.empty()) return;
  folder_ = make_file_block_store(
      ops->folder + "/" +
      origin_folder(context_.model_identity, memory_.config, context_.parallel));
}

void StoreKVConnectorWorker::wait_for_save() {
  if (ops_.empty()) return;
  // In the order of the operations: what goes makes room for what comes.
  std::vector<Blob> blobs;
  for (const StoreOp& op : ops_)
    if (op.kind == StoreOpKind::kSave) blobs.push_back(read_block(op.block));
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
