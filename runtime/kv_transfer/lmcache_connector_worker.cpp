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
#include "runtime/kv_transfer/lmcache/cache_engine_key.hpp"
#include "runtime/kv_transfer/lmcache/remote_metadata.hpp"
#include "runtime/kv_transfer/lmcache_connector.hpp"
#include "runtime/kv_transfer/model_identity.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using lmcache::ChunkId;
using lmcache::PythonInt;

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

ChunkTransfers::ChunkTransfers(const lmcache::LMCacheConfig& config, Names names,
                               const BlockOrigin& origin)
    : names_(std::move(names)),
      origin_(origin),
      signed_hashes_(config.hash_algorithm == lmcache::ChunkHashAlgorithm::kBuiltin),
      folder_(folder_of_rank(config, names_.rank)) {}

Result<std::unique_ptr<ChunkTransfers>> ChunkTransfers::open(const lmcache::LMCacheConfig& config,
                                                             Names names,
                                                             const BlockOrigin& origin) {
  std::unique_ptr<ChunkTransfers> transfers(new ChunkTransfers(config, std::move(names), origin));
  if (!transfers->folder_.empty()) {
    std::error_code error;
    fs::create_directories(transfers->folder_, error);
    if (error)
      return Error{ErrorCode::kIo,
                   "kv-transfer-config: cannot make the folder " + transfers->folder_ + ": " +
                       error.message(),
                   "kv-transfer-config"};
  }
  if (!config.remote.url.empty()) {
    ASSIGN_OR_RETURN(transfers->remote_, lmcache::make_remote_store(config.remote));
    ASSIGN_OR_RETURN(auto writer, lmcache::make_remote_store(config.remote));
    transfers->remote_writer_ = std::make_unique<lmcache::RemoteWriter>(std::move(writer));
  }
  transfers->thread_.emplace([all = transfers.get()](Job& job) { all->perform(job); },
                             [](const Job& job) { return std::holds_alternative<Load>(job); });
  return transfers;
}

void ChunkTransfers::load(ChunkLoad load, std::vector<std::size_t> num_bytes) {
  thread_->add(Load{std::move(load), std::move(num_bytes)});
}
void ChunkTransfers::remove(const ChunkBlocks& chunk) { thread_->add(Removal{chunk}); }
void ChunkTransfers::clear() { thread_->add(Clearing{}); }

void ChunkTransfers::save(const ChunkBlocks& chunk, Blob blob) {
  const std::size_t num_bytes = blob.size();
  thread_->add(Save{chunk, std::move(blob)}, num_bytes);
}

std::string ChunkTransfers::key_of(const ChunkBlocks& chunk) const {
  const lmcache::CacheEngineKey key{
      .model = names_.model,
      .world_size = names_.world_size,
      .worker = names_.rank,
      .hash = signed_hashes_ ? PythonInt::of(static_cast<std::int64_t>(chunk.hash))
                             : PythonInt{chunk.hash, false},
      .dtype = names_.dtype,
      .layer = {},
      .tags = {}};
  return key.text() + chunk.tags;
}

std::string ChunkTransfers::path_of(const std::string& key) const {
  return folder_ + "/" + lmcache::disk_file_name(key);
}

void ChunkTransfers::perform(Job& job) {
  if (auto* const load = std::get_if<Load>(&job)) {
    auto blobs = read(*load);
    if (!blobs.ok())
      log_warning("chunks of the KV cache cannot be loaded", kv("request", load->load.id),
                  kv("reason", blobs.error().message));
    thread_->deliver({std::move(load->load), std::move(blobs)});
  } else if (auto* const save = std::get_if<Save>(&job)) {
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
    if (folder_.empty()) return;
    for (fs::directory_iterator file(folder_, error), end; !error && file != end;
         file.increment(error))
      if (file->path().filename().string().starts_with(prefix)) ::unlink(file->path().c_str());
  }
}

Result<std::vector<std::shared_ptr<const Blob>>> ChunkTransfers::read(const Load& load) {
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
Result<std::shared_ptr<const Blob>> ChunkTransfers::read(const ChunkBlocks& chunk,
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
    : context_(std::move(context)), config_(std::move(config)) {}

Result<void> LMCacheConnectorWorker::register_kv_caches(const KVCacheMemory& memory) {
  transfers_.reset();
  ops_.clear();
  loads_.clear();
  memory_ = memory;
  origin_ = block_origin(context_.model_identity, memory.config, context_.parallel);
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

template <class Copy>
void LMCacheConnectorWorker::for_each_page(const ChunkBlocks& chunk, Copy&& copy) const {
  // As many tokens of each group, in blocks of the group's size.
  std::size_t blocks_per_token_sum = 0;
  std::int32_t unit = 1;
  for (const KVCacheGroup& group : memory_.config.groups)
    unit = std::lcm(unit, group.spec.block_size);
  for (const KVCacheGroup& group : memory_.config.groups)
    blocks_per_token_sum += static_cast<std::size_t>(unit / group.spec.block_size);
  const std::size_t num_units = chunk.blocks.size() / blocks_per_token_sum;
  std::size_t next = 0;
  for (std::size_t g = 0; g < memory_.groups.size(); ++g) {
    const std::size_t num_blocks =
        num_units * static_cast<std::size_t>(unit / memory_.config.groups[g].spec.block_size);
    for (std::size_t i = 0; i < num_blocks; ++i, ++next) {
      const BlockId block = chunk.blocks[next];
      for (const KVCacheMemory::Layer& layer : memory_.groups[g])
        copy(block == kNullBlock ? nullptr : layer.data + block * layer.page_bytes,
             static_cast<std::size_t>(layer.page_bytes));
    }
  }
}

std::size_t LMCacheConnectorWorker::num_bytes(const ChunkBlocks& chunk) const {
  std::size_t bytes = 0;
  for_each_page(chunk, [&](std::byte*, std::size_t page_bytes) { bytes += page_bytes; });
  return bytes;
}

Blob LMCacheConnectorWorker::read_chunk(const ChunkBlocks& chunk) {
  Blob blob = make_blob(origin_, {chunk.digest, 0}, num_bytes(chunk));
  std::byte* to = blob_content(blob).data();
  for_each_page(chunk, [&](std::byte* page, std::size_t page_bytes) {
    if (page != nullptr) memory_.device->copy_to_host(to, page, page_bytes);
    to += page_bytes;
  });
  return blob;
}

void LMCacheConnectorWorker::write_chunk(const ChunkBlocks& chunk, const Blob& blob) {
  const std::byte* from = blob_content(blob).data();
  for_each_page(chunk, [&](std::byte* page, std::size_t page_bytes) {
    if (page != nullptr) memory_.device->copy_to_device(page, from, page_bytes);
    from += page_bytes;
  });
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
    transfers_->load(std::move(load), std::move(sizes));
  }
  ops_ = std::move(ops->ops);
}

void LMCacheConnectorWorker::wait_for_save() {
  if (ops_.empty()) return;
  std::vector<Blob> blobs;
  for (const ChunkOp& op : ops_)
    if (op.kind == ChunkOp::Kind::kSave) blobs.push_back(read_chunk(op.chunk));
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

}  // namespace

Result<std::shared_ptr<KVConnector>> make_lmcache_connector(const KVConnectorContext& context) {
  ASSIGN_OR_RETURN(lmcache::LMCacheConfig config, read_config(context.config));
  RETURN_IF_ERROR(LMCacheConnector::check(context, config));
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
  return std::shared_ptr<KVConnector>(
      std::make_shared<LMCacheConnector>(context, std::move(config), std::move(lookup), stored));
}

Result<std::unique_ptr<KVConnectorWorker>> make_lmcache_connector_worker(
    const KVConnectorWorkerContext& context) {
  ASSIGN_OR_RETURN(lmcache::LMCacheConfig config, read_config(context.config));
  return std::unique_ptr<KVConnectorWorker>(
      std::make_unique<LMCacheConnectorWorker>(context, std::move(config)));
}

}  // namespace troupe
