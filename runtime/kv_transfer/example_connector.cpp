// ExampleConnector: the KV of prompts in files, as vLLM's connector of that name (earlier
// SharedStorageConnector) has it: DIRECTORY/MD5/LAYER.safetensors with the tensor kv_cache,
// [tokens, heads, key and value]. The MD5 is of the tokens as 64-bit integers, and the images'
// hashes.

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <variant>

#include "messages/wire.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/kv_transfer/block_blob.hpp"
#include "runtime/kv_transfer/connectors.hpp"
#include "runtime/kv_transfer/metadata_text.hpp"
#include "runtime/kv_transfer/model_identity.hpp"
#include "runtime/kv_transfer/page_order.hpp"
#include "runtime/kv_transfer/scheduled_requests.hpp"
#include "runtime/models/tensor_file.hpp"
#include "runtime/worker/transfer_thread.hpp"

namespace troupe {

/// Tokens of a prompt, the first ones of a folder.
struct PromptFiles {
  std::uint64_t number = 0;  ///< of a load, ascending: one may be sent again after a failed step
  RequestId id{};
  std::string folder;
  std::int32_t num_tokens = 0;   ///< that the files have
  std::int32_t begin_token = 0;  ///< what is before it is not loaded
  std::vector<BlockId> blocks;
};
TROUPE_MESSAGE(PromptFiles, number, id, folder, num_tokens, begin_token, blocks)

/// The metadata of a step.
struct PromptFileOps {
  std::uint64_t oldest_load = 0;  ///< those of lower numbers have been reported by every rank
  std::vector<PromptFiles> loads;
  std::vector<PromptFiles> saves;
};
TROUPE_MESSAGE(PromptFileOps, oldest_load, loads, saves)

namespace {

constexpr const char* kKvTensor = "kv_cache";
/// More than any header of a file with one tensor.
constexpr std::size_t kMaxTensorHeader = std::size_t{1} << 20;

struct PromptFileOptions {
  std::string path;
  std::string layer_names;
  std::chrono::milliseconds load_timeout{};
};

Result<PromptFileOptions> read_prompt_file_options(const ConnectorConfig& config) {
  PromptFileOptions options;
  ConnectorExtraConfig extra(ConnectorKind::kKV, config);
  ASSIGN_OR_RETURN(options.path, extra.take_text("shared_storage_path", "/tmp"));
  ASSIGN_OR_RETURN(options.layer_names,
                   extra.take_text("layer_names", "model.layers.{}.self_attn.attn"));
  ASSIGN_OR_RETURN(options.load_timeout, take_load_timeout(extra));
  RETURN_IF_ERROR(extra.check_empty());
  if (options.layer_names.find("{}") == std::string::npos ||
      options.layer_names.find('/') != std::string::npos)
    return invalid_argument("kv-transfer-config: kv_connector_extra_config: layer_names is '" +
                                options.layer_names +
                                "', expected a name with {} in place of the layer's number",
                            "kv-transfer-config");
  return options;
}

/// Errors: kUnsupported.
Result<void> check_prompt_files(const KVCacheConfig& cache, const ParallelConfig& parallel) {
  const auto refuse = [](const std::string& what) {
    return Error{ErrorCode::kUnsupported,
                 "kv-transfer-config: ExampleConnector has no place in its files for " + what,
                 "kv-transfer-config"};
  };
  if (parallel.tensor_parallel_size > 1) return refuse("several tensor-parallel ranks");
  if (cache.groups.size() != 1) return refuse("layers of several kinds");
  const KVCacheSpec& spec = cache.groups.front().spec;
  if (!spec.is<FullAttentionSpec>())
    return refuse(std::string("layers of the kind ") + spec.kind_name());
  if (spec.token()->scale_bytes != 0) return refuse("caches of 8 bits");
  return {};
}

/// vLLM's align_to_block_size: a full last block is left out.
std::int32_t align_to_blocks(std::int32_t num_tokens, std::int32_t block_size) {
  return num_tokens <= 0 ? 0 : (num_tokens - 1) / block_size * block_size;
}

std::string prompt_folder(std::span<const TokenId> tokens,
                          const std::vector<MultiModalFeature>& images) {
  std::vector<std::uint8_t> bytes;
  bytes.reserve(tokens.size() * sizeof(std::int64_t));
  for (const TokenId token : tokens) {
    const auto number = static_cast<std::int64_t>(token);
    const auto* const from = reinterpret_cast<const std::uint8_t*>(&number);
    bytes.insert(bytes.end(), from, from + sizeof number);
  }
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (i > 0) bytes.push_back('-');
    bytes.insert(bytes.end(), images[i].identifier.begin(), images[i].identifier.end());
  }
  std::array<std::uint8_t, 16> digest{};
  std::size_t size = digest.size();
  CHECK(EVP_Q_digest(nullptr, "MD5", nullptr, bytes.data(), bytes.size(), digest.data(), &size) ==
        1);
  return to_hex(digest);
}

// ---- the Scheduler's side -----------------------------------------------------------------------

class PromptFileConnector final : public KVConnector {
 public:
  PromptFileConnector(const KVConnectorContext& context, PromptFileOptions options)
      : role_(context.config.role),
        options_(std::move(options)),
        block_size_(context.cache.groups.front().spec.block_size) {}

  void on_new_request(const KVCacheRequest& request) override {
    // The files' names say nothing of those.
    const bool is_plain =
        request.cache_salt.empty() && !request.lora && request.prompt_embeds == nullptr;
    if (is_plain) requests_[request.id] = {.images = request.mm_features};
  }
  std::optional<Match> get_num_new_matched_tokens(const RequestState& request,
                                                  std::int32_t num_local_tokens) override {
    Request* const known = find(request);
    if (known == nullptr || known->load_failed || known->has_loaded ||
        role_ == ConnectorRole::kProducer || request.params.skip_reading_prefix_cache)
      return Match{};
    const std::int32_t end = align_to_blocks(request.num_prompt_tokens - 1, block_size_);
    if (end <= num_local_tokens || !has_folder(*known, request, end)) return Match{};
    known->num_matched_after = num_local_tokens;
    return Match{.num_tokens = end - num_local_tokens, .async = true};
  }
  void update_state_after_alloc(const RequestState& request, const BlockTable& blocks,
                                std::int32_t num_external_tokens) override {
    Request* const known = find(request);
    if (known == nullptr) return;
    known->state = &request;
    known->blocks = blocks;
    if (num_external_tokens == 0) return;
    known->has_loaded = true;
    const std::int32_t end = known->num_matched_after + num_external_tokens;
    PromptFiles load{.number = ++last_load_,
                     .id = request.id,
                     .folder = folder_of(*known, request, end),
                     .num_tokens = end,
                     .begin_token = known->num_matched_after,
                     .blocks = blocks.front()};
    open_loads_.emplace(load.number, load);
    next_.loads.push_back(std::move(load));
  }
  Finished request_finished(const RequestState& request, const BlockTable&) override {
    requests_.erase(request.id);
    return {};
  }
  Medium medium(const RequestState&) const override { return Medium::kDisk; }
  std::string build_connector_metadata(const SchedulerOutput& step) override {
    ScheduledRequests all(step, 1);
    while (const auto scheduled = all.next()) {
      const auto found = requests_.find(scheduled->id);
      if (found == requests_.end() || found->second.state == nullptr) continue;
      ScheduledRequests::append_new_blocks(*scheduled, found->second.blocks);
      save(found->second, all.num_computed(*scheduled) + scheduled->num_scheduled);
    }
    if (std::exchange(sends_loads_again_, false)) {
      next_.loads.clear();
      for (const auto& [number, load] : open_loads_) next_.loads.push_back(load);
    }
    if (next_.loads.empty() && next_.saves.empty()) return {};
    next_.oldest_load = open_loads_.empty() ? last_load_ + 1 : open_loads_.begin()->first;
    return metadata_text(std::exchange(next_, {}));
  }
  void update_connector_output(const KVConnectorOutput& output) override {
    for (const RequestId id : output.finished_recving) {
      const auto load = std::ranges::find_if(
          open_loads_, [id](const auto& numbered) { return numbered.second.id == id; });
      if (load == open_loads_.end()) continue;
      open_loads_.erase(load);
      const auto known = requests_.find(id);
      if (known != requests_.end() && std::ranges::count(output.failed_recving, id) > 0)
        known->second.load_failed = true;
    }
  }
  void on_failed_steps() override { sends_loads_again_ = true; }

 private:
  struct Request {
    std::vector<MultiModalFeature> images;
    const RequestState* state = nullptr;  ///< once it has blocks
    BlockTable blocks;
    std::int32_t num_matched_after = 0;
    bool has_loaded = false;   ///< what is loaded is not saved
    bool load_failed = false;  ///< the files are written anew
    bool is_saved = false;
  };

  [[nodiscard]] Request* find(const RequestState& request) {
    const auto known = requests_.find(request.id);
    return known == requests_.end() || request.resumable ? nullptr : &known->second;
  }
  [[nodiscard]] std::string folder_of(const Request& known, const RequestState& request,
                                      std::int32_t num_tokens) const {
    const std::span<const TokenId> tokens(request.token_ids.get());
    return options_.path + "/" +
           prompt_folder(tokens.first(static_cast<std::size_t>(num_tokens)), known.images);
  }
  [[nodiscard]] bool has_folder(const Request& known, const RequestState& request,
                                std::int32_t num_tokens) const {
    return ::access(folder_of(known, request, num_tokens).c_str(), F_OK) == 0;
  }
  void save(Request& request, std::int32_t num_computed) {
    const RequestState& state = *request.state;
    const std::int32_t num_tokens = align_to_blocks(state.num_prompt_tokens, block_size_);
    const bool may_save = role_ != ConnectorRole::kConsumer && !request.is_saved &&
                          (!request.has_loaded || request.load_failed) && !state.resumable;
    if (!may_save || num_tokens <= 0 || num_computed < num_tokens) return;
    request.is_saved = true;
    // Lookups leave out the last token, so they may find one block less.
    const std::int32_t looked_up = align_to_blocks(state.num_prompt_tokens - 1, block_size_);
    if (!request.load_failed && looked_up > 0 && has_folder(request, state, looked_up)) return;
    next_.saves.push_back({.id = state.id,
                           .folder = folder_of(request, state, num_tokens),
                           .num_tokens = num_tokens,
                           .blocks = request.blocks.front()});
  }

  ConnectorRole role_;
  PromptFileOptions options_;
  std::int32_t block_size_;
  std::unordered_map<RequestId, Request> requests_;
  std::uint64_t last_load_ = 0;
  std::map<std::uint64_t, PromptFiles> open_loads_;  // not yet reported
  bool sends_loads_again_ = false;
  PromptFileOps next_;
};

// ---- a worker's side ----------------------------------------------------------------------------

/// Pages of each layer, one behind the other.
using LayerPages = std::vector<std::vector<std::byte>>;

/// What the thread that reads and writes a rank's files works with.
class PromptFileStore {
 public:
  struct Save {
    PromptFiles files;
    LayerPages pages;
  };
  struct Loaded {
    PromptFiles files;
    Result<LayerPages> pages;
  };
  using Job = std::variant<PromptFiles, Save>;

  /// Errors: kUnsupported.
  static Result<std::shared_ptr<PromptFileStore>> create(const KVCacheMemory& memory,
                                                         const PromptFileOptions& options,
                                                         const std::string& model_identity) {
    auto store = std::make_shared<PromptFileStore>();
    const KVCacheSpec& spec = memory.config.groups.front().spec;
    ASSIGN_OR_RETURN(store->order_, PageOrder::of(*memory.device, spec));
    store->layer_names_ = options.layer_names;
    store->layers_ = memory.groups.front();
    store->block_size_ = spec.block_size;
    const DType type = spec.token()->dtype;
    store->type_ = type == DType::kF32    ? TensorType::kF32
                   : type == DType::kBF16 ? TensorType::kBF16
                                          : TensorType::kF16;
    store->model_ = to_hex(xxh3_128(model_identity));
    return store;
  }

  [[nodiscard]] std::optional<Loaded> perform(Job& job) const {
    if (auto* const load = std::get_if<PromptFiles>(&job)) {
      auto pages = read(*load);
      if (!pages.ok())
        log_warning("the KV of a prompt cannot be loaded", kv("request", load->id),
                    kv("reason", pages.error().message));
      return Loaded{std::move(*load), std::move(pages)};
    }
    const Save& save = std::get<Save>(job);
    // What cannot be saved is missed when it is to be loaded.
    if (const auto saved = write(save); !saved.ok())
      log_warning("the KV of a prompt cannot be saved", kv("request", save.files.id),
                  kv("reason", saved.error().message));
    return std::nullopt;
  }

  [[nodiscard]] std::size_t page_bytes() const noexcept { return order_.page_bytes(); }
  [[nodiscard]] std::int32_t block_size() const noexcept { return block_size_; }
  [[nodiscard]] std::size_t num_blocks(const PromptFiles& files) const {
    return static_cast<std::size_t>(files.num_tokens / block_size_);
  }

 private:
  [[nodiscard]] std::string own_path(const std::string& folder, std::int32_t layer) const {
    std::string name = layer_names_;
    name.replace(name.find("{}"), 2, std::to_string(layer));
    return folder + "/" + name + ".safetensors";
  }
  /// Of another program's model the names may be others: the one with the layer's number counts.
  [[nodiscard]] std::string path_of(const std::string& folder, std::int32_t layer) const {
    std::string path = own_path(folder, layer);
    if (::access(path.c_str(), F_OK) == 0) return path;
    const std::string number = "." + std::to_string(layer) + ".";
    std::error_code error;
    for (std::filesystem::directory_iterator file(folder, error), end; !error && file != end;
         file.increment(error)) {
      const std::string name = file->path().filename().string();
      if (name.find(number) != std::string::npos && name.ends_with(".safetensors"))
        return file->path().string();
    }
    return path;
  }

  Result<void> write(const Save& save) const {
    std::vector<std::byte> rows;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const std::vector<std::byte>& pages = save.pages[l];
      rows.resize(pages.size());
      for (std::size_t at = 0; at < pages.size(); at += order_.page_bytes())
        order_.to_rows(std::span(pages).subspan(at, order_.page_bytes()),
                       std::span(rows).subspan(at, order_.page_bytes()));
      RETURN_IF_ERROR(write_tensor_file(
          own_path(save.files.folder, layers_[l].layer), kKvTensor,
          {.type = type_,
           .shape = {save.files.num_tokens, order_.num_heads(), order_.content_size()},
           .bytes = rows},
          {{"troupe.model", model_}, {"troupe.xxh3_128", digest_of(rows)}}));
    }
    return {};
  }

  [[nodiscard]] Result<LayerPages> read(const PromptFiles& files) const {
    const std::size_t first =
        static_cast<std::size_t>(files.begin_token / block_size_) * order_.page_bytes();
    LayerPages all;
    for (const KVCacheMemory::Layer& layer : layers_) {
      const std::string path = path_of(files.folder, layer.layer);
      const std::size_t num_bytes = num_blocks(files) * order_.page_bytes();
      ASSIGN_OR_RETURN(const std::string file, read_file(path, num_bytes + kMaxTensorHeader));
      ASSIGN_OR_RETURN(const std::span<const std::byte> rows, check_file(file, path, files));
      std::vector<std::byte>& pages = all.emplace_back(rows.size() - first);
      for (std::size_t at = first; at < rows.size(); at += order_.page_bytes())
        order_.to_page(rows.subspan(at, order_.page_bytes()),
                       std::span(pages).subspan(at - first, order_.page_bytes()));
    }
    return all;
  }

  [[nodiscard]] Result<std::span<const std::byte>> check_file(const std::string& file,
                                                              const std::string& path,
                                                              const PromptFiles& files) const {
    const auto corrupt = [&](const std::string& what, const std::string& found,
                             const std::string& expected) {
      return Error{ErrorCode::kCorrupt,
                   path + ": " + what + " is " + found + ", expected " + expected};
    };
    const std::span<const std::byte> bytes = std::as_bytes(std::span(file));
    ASSIGN_OR_RETURN(const TensorMap tensors, parse_safetensors(bytes, path));
    const auto tensor = tensors.find(kKvTensor);
    if (tensor == tensors.end())
      return Error{ErrorCode::kCorrupt, path + ": there is no tensor " + kKvTensor};
    const TensorView& view = tensor->second;
    if (view.type != type_)
      return corrupt("the type", std::string(to_string(view.type)), std::string(to_string(type_)));
    const std::array<std::int64_t, 3> shape{files.num_tokens, order_.num_heads(),
                                            order_.content_size()};
    if (!std::ranges::equal(view.shape, shape))
      return corrupt("the shape", shape_text(view.shape), shape_text(shape));
    // What other programs write has none of these.
    auto metadata = tensor_file_metadata(bytes);
    if (metadata.contains("troupe.model") && metadata["troupe.model"] != model_)
      return corrupt("the model", metadata["troupe.model"], model_);
    if (metadata.contains("troupe.xxh3_128") &&
        metadata["troupe.xxh3_128"] != digest_of(view.bytes))
      return corrupt("xxh3_128", digest_of(view.bytes), metadata["troupe.xxh3_128"]);
    return view.bytes;
  }
  static std::string digest_of(std::span<const std::byte> bytes) {
    return to_hex(
        xxh3_128(std::span(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size())));
  }

  std::string layer_names_;
  std::vector<KVCacheMemory::Layer> layers_;
  PageOrder order_;
  std::int32_t block_size_ = 0;
  TensorType type_ = TensorType::kF32;
  std::string model_;
};

class PromptFileConnectorWorker final : public KVConnectorWorker {
 public:
  PromptFileConnectorWorker(KVConnectorWorkerContext context, PromptFileOptions options)
      : context_(std::move(context)), options_(std::move(options)) {}

  Result<void> register_kv_caches(const KVCacheMemory& memory) override {
    thread_.reset();
    saves_.clear();
    loads_.clear();
    open_loads_ = {};
    RETURN_IF_ERROR(check_prompt_files(memory.config, context_.parallel));
    memory_ = memory;
    ASSIGN_OR_RETURN(store_, PromptFileStore::create(memory, options_, context_.model_identity));
    thread_.emplace(
        [store = store_](PromptFileStore::Job& job) { return store->perform(job); },
        [](const PromptFileStore::Job& job) { return std::holds_alternative<PromptFiles>(job); });
    return {};
  }
  void start_load_kv(const std::string& metadata) override {
    PromptFileOps ops;
    CHECK(wire::decode(metadata.data(), metadata.size(), ops), metadata.size());
    std::erase_if(loads_, [&](std::uint64_t number) { return number < ops.oldest_load; });
    for (PromptFiles& load : ops.loads)
      if (loads_.insert(load.number).second) {
        open_loads_.add(load, options_.load_timeout);
        thread_->add(std::move(load));
      }
    saves_ = std::move(ops.saves);
  }
  void wait_for_save() override {
    for (PromptFiles& files : std::exchange(saves_, {})) {
      PromptFileStore::Save save{.files = std::move(files), .pages = {}};
      std::size_t num_bytes = 0;
      for (const KVCacheMemory::Layer& layer : memory_.groups.front()) {
        std::vector<std::byte>& pages = save.pages.emplace_back(
            store_->num_blocks(save.files) * static_cast<std::size_t>(layer.page_bytes));
        for (std::size_t i = 0; i < store_->num_blocks(save.files); ++i)
          memory_.device->copy_to_host(pages.data() + i * store_->page_bytes(),
                                       page_of(layer, save.files.blocks.at(i)),
                                       store_->page_bytes());
        num_bytes += pages.size();
      }
      thread_->add(std::move(save), num_bytes);
    }
  }
  KVConnectorOutput get_finished() override {
    KVConnectorOutput output;
    if (!thread_) return output;
    for (const PromptFileStore::Loaded& loaded : thread_->take_done()) {
      if (!open_loads_.remove(loaded.files.number)) continue;  // it was late
      output.finished_recving.push_back(loaded.files.id);
      if (!loaded.pages.ok()) {
        output.failed_recving.push_back(loaded.files.id);
        continue;
      }
      const auto first = static_cast<std::size_t>(loaded.files.begin_token / store_->block_size());
      for (std::size_t l = 0; l < loaded.pages->size(); ++l)
        for (std::size_t i = first; i < store_->num_blocks(loaded.files); ++i)
          memory_.device->copy_to_device(
              page_of(memory_.groups.front()[l], loaded.files.blocks.at(i)),
              (*loaded.pages)[l].data() + (i - first) * store_->page_bytes(), store_->page_bytes());
    }
    for (const PromptFiles& late : open_loads_.take_late(thread_->hangs(options_.load_timeout))) {
      log_warning("the KV of a prompt is not there in time", kv("request", late.id),
                  kv("limit_ms", options_.load_timeout.count()));
      output.finished_recving.push_back(late.id);
      output.failed_recving.push_back(late.id);
    }
    return output;
  }

 private:
  static std::byte* page_of(const KVCacheMemory::Layer& layer, BlockId block) {
    return layer.data + block * layer.page_bytes;
  }

  KVConnectorWorkerContext context_;
  PromptFileOptions options_;
  KVCacheMemory memory_;
  std::shared_ptr<PromptFileStore> store_;   // null: there is no cache yet
  std::vector<PromptFiles> saves_;           // of the step
  std::unordered_set<std::uint64_t> loads_;  // numbers of those that came and may come again
  OpenLoads<PromptFiles> open_loads_;
  std::optional<TransferThread<PromptFileStore::Job, PromptFileStore::Loaded>> thread_;
};

}  // namespace

Result<std::shared_ptr<KVConnector>> make_example_connector(const KVConnectorContext& context) {
  ASSIGN_OR_RETURN(PromptFileOptions options, read_prompt_file_options(context.config));
  RETURN_IF_ERROR(check_prompt_files(context.cache, context.parallel));
  return std::shared_ptr<KVConnector>(
      std::make_shared<PromptFileConnector>(context, std::move(options)));
}

Result<std::unique_ptr<KVConnectorWorker>> make_example_connector_worker(
    const KVConnectorWorkerContext& context) {
  ASSIGN_OR_RETURN(PromptFileOptions options, read_prompt_file_options(context.config));
  return std::unique_ptr<KVConnectorWorker>(
      std::make_unique<PromptFileConnectorWorker>(context, std::move(options)));
}

}  // namespace troupe
