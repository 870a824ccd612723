#include "runtime/kv_transfer/lmcache_connector_worker.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/log.hpp"
#include "runtime/kv_transfer/block_store.hpp"
#include "runtime/kv_transfer/lmcache/cache_engine_key.hpp"
#include "runtime/kv_transfer/lmcache/remote_metadata.hpp"
#include "runtime/kv_transfer/lmcache_connector.hpp"
#include "runtime/kv_transfer/model_identity.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using lmcache::ChunkId;

constexpr std::string_view kChunkSuffix = ".pt";

std::string folder_of_rank(const lmcache::LMCacheConfig& config, std::int32_t rank) {
  return config.local_disk.empty()
             ? ""
             : config.local_disk[static_cast<std::size_t>(rank) % config.local_disk.size()];
}

Result<Blob> read_chunk_file(const std::string& path, std::size_t num_bytes) {
  const auto failed = [&] {
    return Error{errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                 "cannot read " + path + ": " + std::strerror(errno),
                 {}};
  };
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0) return failed();
  if (static_cast<std::size_t>(status.st_size) != num_bytes)
    return Error{ErrorCode::kCorrupt,
                 path + " has " + std::to_string(status.st_size) + " bytes, expected " +
                     std::to_string(num_bytes),
                 {}};
  Blob blob(num_bytes);
  for (std::size_t done = 0; done < num_bytes;) {
    const ssize_t count =
        ::pread(file.get(), blob.data() + done, num_bytes - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return failed();
    done += static_cast<std::size_t>(count);
  }
  static_cast<void>(::futimens(file.get(), nullptr));  // it was used last, also after a restart
  return blob;
}

/// Atomically: a reader gets either the old or the new one.
Result<void> write_chunk_file(const std::string& path, const Blob& blob) {
  std::string unfinished = path + ".XXXXXX";
  const FileDescriptor file(::mkostemp(unfinished.data(), O_CLOEXEC));
  if (file.valid() && write_all(file.get(), blob, 0) &&
      ::rename(unfinished.c_str(), path.c_str()) == 0)
    return {};
  const Error error{ErrorCode::kIo, "cannot write " + path + ": " + std::strerror(errno), {}};
  ::unlink(unfinished.c_str());
  return error;
}

}  // namespace

std::vector<std::pair<ChunkId, std::int64_t>> list_chunk_files(const lmcache::LMCacheConfig& config,
                                                               const ChunkTransfers::Names& names) {
  std::vector<std::pair<fs::file_time_type, std::pair<ChunkId, std::int64_t>>> found;
  std::error_code error;
  for (fs::directory_iterator file(folder_of_rank(config, names.rank), error), end;
       !error && file != end; file.increment(error)) {
    std::string name = file->path().filename().string();
    if (!name.ends_with(kChunkSuffix)) continue;
    name.resize(name.size() - kChunkSuffix.size());
    const auto key = lmcache::parse_cache_engine_key(name);
    if (!key.ok() || key->model != names.model || key->world_size != names.world_size ||
        key->worker != names.rank || key->dtype != names.dtype || key->layer)
      continue;
    ChunkId id{key->hash.negative ? 0 - key->hash.magnitude : key->hash.magnitude, {}};
    for (const auto& [tag, text] : key->tags)
      id.tags.append(1, '@').append(tag).append(1, '%') += text;
    std::error_code ignored;
    const auto time = file->last_write_time(ignored);
    const auto bytes = static_cast<std::int64_t>(file->file_size(ignored));
    if (!ignored) found.push_back({time, {std::move(id), bytes}});
  }
  std::ranges::sort(found, {}, [](const auto& entry) { return entry.first; });
  std::vector<std::pair<ChunkId, std::int64_t>> chunks;
  for (auto& [time, chunk] : found) chunks.push_back(std::move(chunk));
  return chunks;
}

// ---- ChunkTransfers -----------------------------------------------------------------------------

/// What the thread works on. It outlives a ChunkTransfers whose thread hangs in it.
class ChunkTransfers::Store {
 public:
  /// Errors: of the remote store and of the folder.
  [[nodiscard]] static Result<std::shared_ptr<Store>> open(const lmcache::LMCacheConfig& config,
                                                           Names names, const BlockOrigin& origin);
  [[nodiscard]] std::optional<Loaded> perform(Job& job);

 private:
  Store(const lmcache::LMCacheConfig& config, Names names, const BlockOrigin& origin);
  [[nodiscard]] Result<std::vector<std::shared_ptr<const Blob>>> read(const Load& load);
  [[nodiscard]] Result<std::shared_ptr<const Blob>> read(const ChunkBlocks& chunk,
                                                         std::size_t num_bytes);
  [[nodiscard]] std::string key_of(const ChunkBlocks& chunk) const;
  [[nodiscard]] std::string path_of(const std::string& key) const;

  const Names names_;
  const BlockOrigin origin_;
  const bool signed_hashes_;
  std::string folder_;  // empty: no disk
  std::unordered_map<lmcache::ChunkId, std::shared_ptr<const Blob>, lmcache::ChunkIdHash> memory_;
  std::unique_ptr<lmcache::RemoteStore> remote_;          // null: none
  std::unique_ptr<lmcache::RemoteWriter> remote_writer_;  // null: none
};

ChunkTransfers::Store::Store(const lmcache::LMCacheConfig& config, Names names,
                             const BlockOrigin& origin)
    : names_(std::move(names)),
      origin_(origin),
      signed_hashes_(config.hash_algorithm == lmcache::ChunkHashAlgorithm::kBuiltin),
      folder_(folder_of_rank(config, names_.rank)) {}

Result<std::shared_ptr<ChunkTransfers::Store>> ChunkTransfers::Store::open(
    const lmcache::LMCacheConfig& config, Names names, const BlockOrigin& origin) {
  std::shared_ptr<Store> store(new Store(config, std::move(names), origin));
  if (!store->folder_.empty()) {
    RETURN_IF_ERROR(make_store_folder(store->folder_));
  }
  if (!config.remote.url.empty()) {
    ASSIGN_OR_RETURN(store->remote_, lmcache::make_remote_store(config.remote));
    ASSIGN_OR_RETURN(auto writer, lmcache::make_remote_store(config.remote));
    store->remote_writer_ = std::make_unique<lmcache::RemoteWriter>(std::move(writer));
  }
  return store;
}

Result<std::unique_ptr<ChunkTransfers>> ChunkTransfers::open(const lmcache::LMCacheConfig& config,
                                                             Names names,
                                                             const BlockOrigin& origin) {
  ASSIGN_OR_RETURN(std::shared_ptr<Store> store, Store::open(config, std::move(names), origin));
  std::unique_ptr<ChunkTransfers> transfers(new ChunkTransfers());
  transfers->load_timeout_ = config.remote.timeout;
  transfers->thread_.emplace([store = std::move(store)](Job& job) { return store->perform(job); },
                             [](const Job& job) { return std::holds_alternative<Load>(job); });
  return transfers;
}

void ChunkTransfers::load(ChunkLoad load, std::vector<std::size_t> num_bytes) {
  open_loads_.add(load, load_timeout_);
  thread_->add(Load{std::move(load), std::move(num_bytes)});
}
void ChunkTransfers::load_layers(ChunkLoad load, std::vector<std::size_t> num_bytes,
                                 std::shared_ptr<LayeredLoad> state, std::size_t num_layers,
                                 CopyLayer copy) {
  thread_->add(
      Load{std::move(load), std::move(num_bytes), std::move(state), num_layers, std::move(copy)});
}
void ChunkTransfers::remove(const ChunkBlocks& chunk) { thread_->add(Removal{chunk}); }
void ChunkTransfers::clear() { thread_->add(Clearing{}); }

void ChunkTransfers::save(const ChunkBlocks& chunk, Blob blob) {
  const std::size_t num_bytes = blob.size();
  thread_->add(Save{chunk, std::move(blob)}, num_bytes);
}

std::vector<ChunkTransfers::Loaded> ChunkTransfers::take_loaded() {
  std::vector<Loaded> all = thread_->take_done();
  std::erase_if(all,
                [this](const Loaded& loaded) { return !open_loads_.remove(loaded.load.number); });
  for (ChunkLoad& late : open_loads_.take_late(thread_->hangs(load_timeout_))) {
    log_warning("chunks of the KV cache are not there in time", kv("request", late.id),
                kv("limit_ms", load_timeout_.count()));
    all.push_back({std::move(late), Error{ErrorCode::kTimeout, "it takes too long", {}}});
  }
  return all;
}

std::string ChunkTransfers::Store::key_of(const ChunkBlocks& chunk) const {
  return lmcache::chunk_key({.model = names_.model,
                             .world_size = names_.world_size,
                             .worker = names_.rank,
                             .hash = {},
                             .dtype = names_.dtype,
                             .layer = {},
                             .tags = {}},
                            {chunk.hash, chunk.tags}, signed_hashes_);
}

std::string ChunkTransfers::Store::path_of(const std::string& key) const {
  return folder_ + "/" + lmcache::disk_file_name(key);
}

std::optional<ChunkTransfers::Loaded> ChunkTransfers::Store::perform(Job& job) {
  if (auto* const load = std::get_if<Load>(&job)) {
    auto blobs = read(*load);
    if (!blobs.ok())
      log_warning("chunks of the KV cache cannot be loaded", kv("request", load->load.id),
                  kv("reason", blobs.error().message));
    if (load->state == nullptr) return Loaded{std::move(load->load), std::move(blobs)};
    bool is_wanted = blobs.ok();
    for (std::size_t layer = 0; is_wanted && layer < load->num_layers; ++layer)
      is_wanted = load->state->put_layer(layer, [&] { load->copy(layer, *blobs); });
    load->state->end(is_wanted);
    return std::nullopt;
  }
  if (auto* const save = std::get_if<Save>(&job)) {
    seal_blob(save->blob);
    const ChunkBlocks& chunk = save->chunk;
    const auto blob = std::make_shared<const Blob>(std::move(save->blob));
    const std::string key = key_of(chunk);
    if ((chunk.tiers & kCpuTier) != 0) memory_.insert_or_assign({chunk.hash, chunk.tags}, blob);
    if ((chunk.tiers & kDiskTier) != 0) {
      // The chunk is missed when it is to be loaded.
      if (const auto written = write_chunk_file(path_of(key), *blob); !written.ok())
        log_warning("a chunk of the KV cache cannot be saved",
                    kv("reason", written.error().message));
    }
    if ((chunk.tiers & kRemoteTier) != 0) remote_writer_->put(key, blob);
  } else if (const auto* const removal = std::get_if<Removal>(&job)) {
    const ChunkBlocks& chunk = removal->chunk;
    if ((chunk.tiers & kCpuTier) != 0) memory_.erase({chunk.hash, chunk.tags});
    if ((chunk.tiers & kDiskTier) != 0) ::unlink(path_of(key_of(chunk)).c_str());
  } else {
    memory_.clear();
    std::error_code error;
    const std::string prefix = names_.model + "@" + std::to_string(names_.world_size) + "@" +
                               std::to_string(names_.rank) + "@";
    if (folder_.empty()) return std::nullopt;
    for (fs::directory_iterator file(folder_, error), end; !error && file != end;
         file.increment(error))
      if (file->path().filename().string().starts_with(prefix)) ::unlink(file->path().c_str());
  }
  return std::nullopt;
}

Result<std::vector<std::shared_ptr<const Blob>>> ChunkTransfers::Store::read(const Load& load) {
  std::vector<std::shared_ptr<const Blob>> blobs;
  for (std::size_t i = 0; i < load.load.chunks.size(); ++i) {
    const ChunkBlocks& chunk = load.load.chunks[i];
    ASSIGN_OR_RETURN(std::shared_ptr<const Blob> blob, read(chunk, load.num_bytes[i]));
    if ((chunk.tiers & kCpuTier) != 0) memory_.insert_or_assign({chunk.hash, chunk.tags}, blob);
    blobs.push_back(std::move(blob));
  }
  return blobs;
}

/// From the first tier that has it, whole and the one that is wanted.
Result<std::shared_ptr<const Blob>> ChunkTransfers::Store::read(const ChunkBlocks& chunk,
                                                                std::size_t num_bytes) {
  const StoreKey wanted{chunk.digest, 0};
  const std::string key = key_of(chunk);
  std::string reasons;
  const auto failed = [&](const char* tier, const Error& error) {
    reasons += std::string(reasons.empty() ? "" : "; ") + tier + ": " + error.message;
  };
  if (const auto found = memory_.find({chunk.hash, chunk.tags}); found != memory_.end()) {
    const auto checked = check_blob(*found->second, origin_, wanted, num_bytes);
    if (checked.ok()) return found->second;
    failed("memory", checked.error());
  }
  const auto take = [&](const char* tier, Blob blob) -> std::shared_ptr<const Blob> {
    const auto checked = check_blob(blob, origin_, wanted, num_bytes);
    if (checked.ok()) return std::make_shared<const Blob>(std::move(blob));
    failed(tier, checked.error());
    return nullptr;
  };
  if (!folder_.empty()) {
    auto blob = read_chunk_file(path_of(key), sizeof(BlobHeader) + num_bytes);
    if (!blob.ok())
      failed("disk", blob.error());
    else if (auto taken = take("disk", std::move(*blob)); taken != nullptr)
      return taken;
  }
  if (remote_ != nullptr) {
    auto blob = remote_->get(key, sizeof(BlobHeader) + num_bytes);
    if (!blob.ok())
      failed("remote", blob.error());
    else if (!blob->has_value())
      failed("remote", {ErrorCode::kNotFound, "it is not there", {}});
    else if (auto taken = take("remote", std::move(**blob)); taken != nullptr)
      return taken;
  }
  return Error{ErrorCode::kNotFound, key + ": " + reasons, {}};
}

// ---- LMCacheConnectorWorker ---------------------------------------------------------------------

LMCacheConnectorWorker::LMCacheConnectorWorker(KVConnectorWorkerContext context,
                                               lmcache::LMCacheConfig config)
    : context_(std::move(context)),
      config_(std::move(config)),
      copier_(config_.use_layerwise ? std::make_unique<LayerCopier>() : nullptr) {}

Result<void> LMCacheConnectorWorker::register_kv_caches(const KVCacheMemory& memory) {
  start_step();
  transfers_.reset();
  ops_.clear();
  loads_.clear();
  memory_ = memory;
  if (config_.use_layerwise && !memory.device->is_host())
    return Error{ErrorCode::kUnsupported,
                 "kv-transfer-config: use_layerwise is for caches in the memory of the host",
                 "kv-transfer-config"};
  origin_ = block_origin(context_.model_identity, memory.config, context_.parallel);
  config_.remote.value_bytes = lmcache_chunk_bytes(memory.config, config_.chunk_size);
  ASSIGN_OR_RETURN(
      transfers_,
      ChunkTransfers::open(
          config_,
          {.model = lmcache_model_name(context_.model_identity, memory.config, context_.parallel),
           .world_size = context_.parallel.world_size(),
           .rank = context_.parallel.rank,
           .dtype = lmcache_dtype(memory.config)},
          origin_));
  return {};
}

template <class Visit>
void LMCacheConnectorWorker::for_each_page(const KVCacheMemory& memory, const ChunkBlocks& chunk,
                                           Visit&& visit) {
  // As many tokens of each group, in blocks of the group's size.
  std::size_t blocks_per_token_sum = 0;
  std::int32_t unit = 1;
  for (const KVCacheGroup& group : memory.config.groups)
    unit = std::lcm(unit, group.spec.block_size);
  for (const KVCacheGroup& group : memory.config.groups)
    blocks_per_token_sum += static_cast<std::size_t>(unit / group.spec.block_size);
  const std::size_t num_units = chunk.blocks.size() / blocks_per_token_sum;
  std::size_t next = 0;
  for (std::size_t g = 0; g < memory.groups.size(); ++g) {
    const std::size_t num_blocks =
        num_units * static_cast<std::size_t>(unit / memory.config.groups[g].spec.block_size);
    for (std::size_t i = 0; i < num_blocks; ++i, ++next) {
      const BlockId block = chunk.blocks[next];
      for (std::size_t l = 0; l < memory.groups[g].size(); ++l) {
        const KVCacheMemory::Layer& layer = memory.groups[g][l];
        visit(Page{block == kNullBlock ? nullptr : layer.data + block * layer.page_bytes,
                   static_cast<std::size_t>(layer.page_bytes), g, l});
      }
    }
  }
}

std::size_t LMCacheConnectorWorker::num_bytes(const ChunkBlocks& chunk) const {
  std::size_t bytes = 0;
  for_each_page(memory_, chunk, [&](const Page& page) { bytes += page.num_bytes; });
  return bytes;
}

Blob LMCacheConnectorWorker::read_chunk(const ChunkBlocks& chunk) {
  Blob blob = make_blob(origin_, {chunk.digest, 0}, num_bytes(chunk));
  std::byte* to = blob_content(blob).data();
  for_each_page(memory_, chunk, [&](const Page& page) {
    if (page.data != nullptr) memory_.device->copy_to_host(to, page.data, page.num_bytes);
    to += page.num_bytes;
  });
  return blob;
}

void LMCacheConnectorWorker::write_chunk(const ChunkBlocks& chunk, const Blob& blob) {
  const std::byte* from = blob_content(blob).data();
  for_each_page(memory_, chunk, [&](const Page& page) {
    if (page.data != nullptr) memory_.device->copy_to_device(page.data, from, page.num_bytes);
    from += page.num_bytes;
  });
}

/// Of what an earlier step has begun, as it has failed, nothing counts.
void LMCacheConnectorWorker::start_step() {
  if (copier_ == nullptr) return;
  step_loads_.drop();
  copier_->drop();
  saves_.clear();
}

void LMCacheConnectorWorker::start_load_kv(const std::string& metadata) {
  CHECK(transfers_ != nullptr);
  std::optional<LMCacheOps> ops = unpack_lmcache_ops(metadata);
  CHECK(ops.has_value(), metadata.size());
  std::erase_if(loads_, [&](std::uint64_t number) { return number < ops->oldest_load; });
  for (ChunkLoad& load : ops->loads) {
    if (!loads_.insert(load.number).second) continue;
    std::vector<std::size_t> sizes;
    for (const ChunkBlocks& chunk : load.chunks) sizes.push_back(num_bytes(chunk));
    if (load.is_layered)
      start_layered(std::move(load), std::move(sizes));
    else
      transfers_->load(std::move(load), std::move(sizes));
  }
  ops_ = std::move(ops->ops);
  if (copier_ != nullptr) begin_saves();
}

void LMCacheConnectorWorker::start_layered(ChunkLoad load, std::vector<std::size_t> sizes) {
  auto state = std::make_shared<LayeredLoad>();
  std::vector<BlockId> blocks;
  for (const ChunkBlocks& chunk : load.chunks)
    std::ranges::copy_if(chunk.blocks, std::back_inserter(blocks),
                         [](BlockId block) { return block != kNullBlock; });
  step_loads_.add(load.id, std::move(blocks), state, config_.remote.timeout);
  const std::vector<PlacedLayer> order = layers_in_order(memory_);
  const auto copy = [memory = memory_, order, chunks = load.chunks](
                        std::size_t place, std::span<const std::shared_ptr<const Blob>> blobs) {
    const PlacedLayer& layer = order[place];
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const std::byte* from = blob_content(*blobs[i]).data();
      for_each_page(memory, chunks[i], [&](const Page& page) {
        if (page.data != nullptr && page.group == layer.group && page.index == layer.index)
          std::memcpy(page.data, from, page.num_bytes);
        from += page.num_bytes;
      });
    }
  };
  transfers_->load_layers(std::move(load), std::move(sizes), std::move(state), order.size(), copy);
}

void LMCacheConnectorWorker::begin_saves() {
  for (const ChunkOp& op : ops_)
    if (op.kind == ChunkOp::Kind::kSave)
      saves_.push_back(make_blob(origin_, {op.chunk.digest, 0}, num_bytes(op.chunk)));
  if (!saves_.empty())
    copier_->begin(memory_, [this](std::size_t group, std::size_t i) { copy_layer(group, i); });
}

void LMCacheConnectorWorker::wait_for_layer_load(std::int32_t layer) {
  step_loads_.wait_for_layer(memory_, layer);
}

/// Nobody changes these pages any more in this step.
void LMCacheConnectorWorker::save_kv_layer(std::int32_t layer) {
  if (copier_ != nullptr) copier_->add(layer);
}

/// To the blobs of the step.
void LMCacheConnectorWorker::copy_layer(std::size_t group, std::size_t index) {
  auto save = saves_.begin();
  for (const ChunkOp& op : ops_) {
    if (op.kind != ChunkOp::Kind::kSave) continue;
    std::byte* to = blob_content(*save++).data();
    for_each_page(memory_, op.chunk, [&](const Page& page) {
      if (page.data != nullptr && page.group == group && page.index == index)
        std::memcpy(to, page.data, page.num_bytes);
      to += page.num_bytes;
    });
  }
}

void LMCacheConnectorWorker::wait_for_save() {
  if (ops_.empty()) return;
  std::vector<Blob> blobs;
  if (copier_ != nullptr) {
    copier_->finish();
    blobs = std::exchange(saves_, {});
  }
  for (const ChunkOp& op : ops_)
    if (copier_ == nullptr && op.kind == ChunkOp::Kind::kSave)
      blobs.push_back(read_chunk(op.chunk));
  if (!memory_.device->is_host() && !memory_.device->synchronize().ok()) return ops_.clear();
  auto blob = blobs.begin();
  for (const ChunkOp& op : std::exchange(ops_, {})) {
    switch (op.kind) {
      case ChunkOp::Kind::kSave:
        transfers_->save(op.chunk, std::move(*blob++));
        break;
      case ChunkOp::Kind::kRemove:
        transfers_->remove(op.chunk);
        break;
      case ChunkOp::Kind::kClear:
        transfers_->clear();
        break;
    }
  }
}

KVConnectorOutput LMCacheConnectorWorker::get_finished() {
  KVConnectorOutput output;
  if (transfers_ == nullptr) return output;
  step_loads_.report(output);
  for (const ChunkTransfers::Loaded& loaded : transfers_->take_loaded()) {
    output.finished_recving.push_back(loaded.load.id);
    if (loaded.blobs.ok()) {
      for (std::size_t i = 0; i < loaded.load.chunks.size(); ++i)
        write_chunk(loaded.load.chunks[i], *(*loaded.blobs)[i]);
    } else {
      output.failed_recving.push_back(loaded.load.id);
    }
  }
  return output;
}

// ---- the factory's ------------------------------------------------------------------------------

namespace {

Result<lmcache::LMCacheConfig> read_config(const ConnectorConfig& config) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  auto read = lmcache::read_lmcache_config(environment, config.extra_config);
  if (!read.ok())
    return Error{read.error().code, "kv-transfer-config: " + read.error().message,
                 "kv-transfer-config"};
  return read;
}

/// Errors: the settings do not fit the engine; kIo, a socket for lookups.
Result<LMCacheWatchers> make_watchers(const KVConnectorContext& context,
                                      const lmcache::LMCacheConfig& config) {
  LMCacheWatchers watchers;
  const std::int32_t num_ranks = context.parallel.world_size();
  const bool has_lookups = config.rpc_port && !context.config.engine_id.empty();
  if (!config.controller.is_enabled && !has_lookups) return watchers;
  const bool is_builtin = config.hash_algorithm == lmcache::ChunkHashAlgorithm::kBuiltin;
  watchers.board = std::make_unique<lmcache::ChunkBoard>(
      lmcache::ChunkHasher(config.hash_algorithm, config.none_hash,
                           static_cast<std::size_t>(config.chunk_size)),
      is_builtin);
  if (config.controller.is_enabled) {
    if (config.controller.moves_chunks && context.parallel.pipeline_parallel_size > 1)
      return invalid_argument(
          "kv-transfer-config: enable_p2p moves no chunks of several pipeline stages",
          "kv-transfer-config");
    ASSIGN_OR_RETURN(lmcache::ControllerOptions options,
                     lmcache::ControllerLink::of_group(config.controller, num_ranks, context.group,
                                                       context.num_groups));
    if (!is_builtin || config.chunk_size != 256)
      log_warning(
          "LMCache's controller looks up tokens in chunks of 256, with builtin hashes: it finds "
          "none of this engine",
          kv("chunk_size", config.chunk_size));
    // Moves are between stores, so that no step is involved: there the engine has all of its
    // chunks.
    std::optional<lmcache::ChunkSource> source;
    if (config.controller.moves_chunks)
      source = lmcache::ChunkSource{
          .store = config.remote,
          .chunk_bytes = lmcache_chunk_bytes(context.cache, config.chunk_size),
          .key_of = [engine = lmcache::CacheEngineKey{.model = lmcache_model_name(
                                                          context.model_identity, context.cache,
                                                          context.parallel),
                                                      .world_size = num_ranks,
                                                      .worker = 0,
                                                      .hash = {},
                                                      .dtype = lmcache_dtype(context.cache),
                                                      .layer = {},
                                                      .tags = {}},
                     is_builtin](const ChunkId& id, std::int32_t rank) mutable {
            engine.worker = rank;
            return lmcache::chunk_key(engine, id, is_builtin);
          }};
    watchers.controller = std::make_unique<lmcache::ControllerLink>(
        std::move(options), num_ranks, *watchers.board, std::move(source));
  }
  if (has_lookups) {
    using lmcache::LookupSocket;
    // As vLLM names the engines of data parallel ranks.
    const std::string engine =
        context.config.engine_id +
        (context.num_groups > 1 ? "_dp" + std::to_string(context.group) : "");
    const auto path_of = [&](LookupSocket socket, std::int32_t rank) {
      return lmcache::lookup_socket_path(socket, config.rpc_folder, engine, *config.rpc_port, rank);
    };
    std::vector<std::string> paths;
    for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
      ASSIGN_OR_RETURN(
          std::string path,
          path_of(config.async_lookups ? LookupSocket::kAsyncRank : LookupSocket::kRank, rank));
      paths.push_back(std::move(path));
    }
    std::string answers;
    if (config.async_lookups) {
      ASSIGN_OR_RETURN(answers, path_of(LookupSocket::kAnswers, 0));
    }
    ASSIGN_OR_RETURN(watchers.lookups,
                     lmcache::LookupServer::open(paths, answers, *watchers.board));
  }
  return watchers;
}

}  // namespace

Result<std::shared_ptr<KVConnector>> make_lmcache_connector(const KVConnectorContext& context) {
  ASSIGN_OR_RETURN(lmcache::LMCacheConfig config, read_config(context.config));
  RETURN_IF_ERROR(LMCacheConnector::check(context, config));
  config.remote.value_bytes = lmcache_chunk_bytes(context.cache, config.chunk_size);
  std::unique_ptr<lmcache::RemoteLookup> lookup;
  if (!config.remote.url.empty()) {
    ASSIGN_OR_RETURN(auto store, lmcache::make_remote_store(config.remote));
    lookup = std::make_unique<lmcache::RemoteLookup>(
        std::move(store), std::chrono::milliseconds(config.lookup_timeout_ms));
  }
  const auto stored = list_chunk_files(
      config, {.model = lmcache_model_name(context.model_identity, context.cache, context.parallel),
               .world_size = context.parallel.world_size(),
               .rank = 0,
               .dtype = lmcache_dtype(context.cache)});
  ASSIGN_OR_RETURN(LMCacheWatchers watchers, make_watchers(context, config));
  return std::shared_ptr<KVConnector>(std::make_shared<LMCacheConnector>(
      context, std::move(config), std::move(lookup), stored, std::move(watchers)));
}

Result<std::unique_ptr<KVConnectorWorker>> make_lmcache_connector_worker(
    const KVConnectorWorkerContext& context) {
  ASSIGN_OR_RETURN(lmcache::LMCacheConfig config, read_config(context.config));
  return std::unique_ptr<KVConnectorWorker>(
      std::make_unique<LMCacheConnectorWorker>(context, std::move(config)));
}

}  // namespace troupe
