// What a ModelRunner does before its first step: loads the model, makes its caches, warms up.
#include "runtime/worker/model_runner.hpp"

#include <algorithm>
#include <limits>

#include "runtime/base/log.hpp"
#include "runtime/models/pooler_config.hpp"
#include "runtime/worker/host_memory.hpp"
#include "runtime/worker/layer_caches.hpp"
#include "runtime/worker/numa.hpp"

namespace troupe {
namespace {

Result<DType> parse_kv_cache_dtype(const std::string& name, DType model_dtype) {
  if (name == "auto") return model_dtype;
  if (name == "int8") return DType::kI8;
  if (name == "fp8" || name == "fp8_e4m3") return DType::kF8E4M3;
  return parse_dtype_name(name);
}

/// What the layers of a model of that type ask for. Pre: the option's name is a type's.
std::vector<LayerCacheSpec> cache_specs(const Model& model, DType model_dtype,
                                        const WorkerOptions& options) {
  const DType dtype = parse_kv_cache_dtype(options.kv_cache_dtype, model_dtype).value();
  std::vector<LayerCacheSpec> specs = model.kv_cache_specs(options.block_size, dtype);
  for (LayerCacheSpec& layer : specs)
    if (TokenShape* token = layer.spec.token())
      token->scale_bytes = static_cast<std::int32_t>(scale_bytes(cache_element_type(token->dtype)));
  return specs;
}

BlockContent block_content(const KVCacheSpec& spec) {
  if (spec.is<MambaSpec>()) return BlockContent::kStates;
  return spec.is<CrossAttentionSpec>() ? BlockContent::kEncoder : BlockContent::kTokens;
}

/// Behind the last of these, the model's own.
std::int32_t first_draft_layer(const std::vector<LayerCacheSpec>& own) {
  return own.empty() ? 0 : own.back().layer + 1;
}

bool has_cross_attention(const std::vector<LayerCacheSpec>& specs) {
  return std::ranges::any_of(
      specs, [](const LayerCacheSpec& layer) { return layer.spec.is<CrossAttentionSpec>(); });
}

/// Of all layers; 0: none has a window.
std::int32_t smallest_window(const ModelConfig& config) {
  std::int32_t smallest = 0;
  for (const std::int32_t window : config.sliding_windows)
    if (window > 0 && (smallest == 0 || window < smallest)) smallest = window;
  return smallest;
}

/// No request of the Scheduler has this id.
constexpr RequestId kWarmUpRequest{std::numeric_limits<std::uint64_t>::max()};

/// A tile of the matrix units.
constexpr std::int64_t kNumWarmUpTokens = 16;

/// Binds the thread to its share of the NUMA nodes, if there are several. How many threads are to
/// compute.
int take_cores(const WorkerOptions& options) {
  const ParallelConfig& parallel = options.parallel;
  const std::vector<NumaNode> nodes = options.numa_bind ? numa_nodes() : std::vector<NumaNode>();
  if (nodes.size() < 2)
    return default_threads(ThreadPool::num_usable_cores(), parallel.ranks_on_host);
  const NumaShare share = numa_share(nodes, parallel.rank_on_host, parallel.ranks_on_host);
  const auto num_cores = static_cast<int>(share.cores().size());
  const auto bound = bind_this_thread(share.nodes);
  if (!bound.ok()) log_warning("the NUMA nodes cannot be used", kv("error", bound.error().message));
  log_info("worker bound", kv("rank", parallel.rank), kv("first_node", share.nodes.front().id),
           kv("nodes", share.nodes.size()), kv("cores", num_cores),
           kv("shared_by", share.num_workers));
  return default_threads(num_cores, share.num_workers);
}

}  // namespace

ModelRunner::ModelRunner(WorkerOptions options, std::unique_ptr<Device> device, LoadedModel loaded)
    : options_(std::move(options)), device_(std::move(device)), loaded_(std::move(loaded)) {
  if (options_.kv_cache_dtype == "auto" && loaded_.config.quantization.fp8_kv_cache)
    options_.kv_cache_dtype = "fp8";  // a draft model's as well: their pages are of one size
  const SpeculativeDecoding& speculative = options_.speculative;
  if (speculative.suffix_max_depth > 0)
    suffix_proposer_.emplace(
        SuffixProposer::Options{.max_depth = speculative.suffix_max_depth,
                                .max_cached_requests = speculative.suffix_max_cached_requests,
                                .max_spec_factor = speculative.suffix_max_spec_factor,
                                .min_token_prob = speculative.suffix_min_token_prob});
  else if (speculative.num_draft_tokens > 0 && !speculative.has_draft_layers())
    proposer_.emplace(speculative.prompt_lookup_min, speculative.prompt_lookup_max);
}

Result<std::unique_ptr<ModelRunner>> ModelRunner::load(const WorkerOptions& options,
                                                       const LoadProgressCallback& progress) {
  if (options.block_size < 1 || options.max_num_batched_tokens < 1)
    return invalid_argument(
        "block_size is " + std::to_string(options.block_size) + " and max_num_batched_tokens is " +
        std::to_string(options.max_num_batched_tokens) + ", both must be at least 1");
  const int num_threads = take_cores(options);
  ASSIGN_OR_RETURN(
      std::unique_ptr<Device> device,
      Device::create({.name = options.device,
                      .cpu_isa = options.cpu_isa,
                      .num_threads = options.threads > 0 ? options.threads : num_threads,
                      .rank_on_host = options.parallel.rank_on_host,
                      .ranks_on_host = options.parallel.ranks_on_host}));
  std::int64_t max_text_tokens = 0;
  if (options.runner != "generate") {
    ASSIGN_OR_RETURN(max_text_tokens, load_max_text_tokens(options.model));
  }
  ModelLoadOptions load{.dtype = options.dtype,
                        .quantization = options.quantization,
                        .packed_weights_dir = options.packed_weights_dir,
                        .mmproj = options.mmproj,
                        .max_model_len = options.max_model_len,
                        .max_text_tokens = max_text_tokens,
                        .parallel = options.parallel};
  const bool has_draft_layers =
      options.speculative.has_draft_layers() && options.parallel.is_last_stage();
  if (has_draft_layers) {  // found wrong before the model's memory is taken
    load.only_checks = true;
    ASSIGN_OR_RETURN(LoadedModel checked, load_model(options.model, *device, load, {}));
    RETURN_IF_ERROR(DraftModel::check(options, *device, checked));
    load.only_checks = false;
  }
  ASSIGN_OR_RETURN(LoadedModel loaded, load_model(options.model, *device, load, progress));
  const bool is_encoder = loaded.model->is_encoder();
  const ModelTask task = loaded.config.task;
  if (task == ModelTask::kEmbed && !is_encoder && options.runner == "generate")
    return invalid_argument("runner generate: the model has no head, it generates no text",
                            "runner");
  const std::string runner_name =
      task == ModelTask::kEmbed && options.runner == "auto" ? "pooling" : options.runner;
  ASSIGN_OR_RETURN(
      const PoolerConfig pooler,
      task == ModelTask::kClassify
          ? classifier_config(loaded.config, options.runner, options.pooler_config, is_encoder)
          : load_pooler_config(options.model, runner_name, options.pooler_config, is_encoder));
  if (pooler.type != PoolingType::kNone && options.speculative.num_draft_tokens > 0)
    return invalid_argument("speculative-config: a pooling model generates no tokens",
                            "speculative-config");
  std::unique_ptr<ModelRunner> runner(
      new ModelRunner(options, std::move(device), std::move(loaded)));
  runner->pooler_ = pooler;
  const auto cache_dtype =
      parse_kv_cache_dtype(runner->options_.kv_cache_dtype, runner->loaded_.dtype);
  if (!cache_dtype.ok()) return cache_dtype.error();
  if (has_draft_layers) {
    ASSIGN_OR_RETURN(runner->draft_model_,
                     DraftModel::load(options, *runner->device_, runner->loaded_, progress));
  }
  if (!options.parallel.is_last_stage())
    RETURN_IF_ERROR(DraftModel::prepare_stage(options, runner->loaded_));
  RETURN_IF_ERROR(runner->reserve_memory());
  return runner;
}

Result<void> ModelRunner::reserve_memory() {
  Model& model = *loaded_.model;
  const std::int64_t max_tokens = options_.max_num_batched_tokens;
  BatchLimits limits{.max_num_tokens = max_tokens, .max_num_logit_rows = LogitRows::kMaxRows};
  const AdapterOptions& adapters = options_.adapters;
  if (adapters.enabled) {
    const AdapterTargets* const targets = model.adapter_targets();
    if (targets == nullptr)
      return Error{ErrorCode::kUnsupported,
                   "enable-lora: adapters are not supported for " + loaded_.config.architecture,
                   "enable-lora"};
    const bool is_bf16 =
        adapters.dtype == "bfloat16" || (adapters.dtype == "auto" && loaded_.dtype == DType::kBF16);
    limits.adapters = {.max_rank = adapters.max_rank,
                       .type = is_bf16 ? ElementType::kBF16 : ElementType::kF32};
    adapters_.emplace(*device_, *targets, adapters, *limits.adapters);
  }
  RETURN_IF_ERROR(model.reserve(limits));
  for (const LoraRequest& module : adapters.modules)
    RETURN_IF_ERROR(adapters_->load({.name = module.name, .path = module.path}));
  if (model.max_item_rows() > 0) {
    ASSIGN_OR_RETURN(encoder_, ItemEncoder::create(*device_, model, options_.encoder_cache_size));
  }
  ASSIGN_OR_RETURN(hidden_,
                   allocate_floats(*device_, max_tokens, model.hidden_size(), "hidden states"));
  return row_logits_.reserve(*device_, model.vocab_size());
}

std::vector<LayerCacheSpec> ModelRunner::kv_cache_specs() const {
  std::vector<LayerCacheSpec> specs = cache_specs(*loaded_.model, loaded_.dtype, options_);
  if (draft_model_ == nullptr) return specs;
  // The last stage drafts, and has the last of the model's layers.
  const std::int32_t first = first_draft_layer(specs);
  for (LayerCacheSpec& layer :
       cache_specs(draft_model_->model(), draft_model_->dtype(), options_)) {
    layer.layer += first;
    specs.push_back(std::move(layer));
  }
  return specs;
}

ModelLoaded ModelRunner::describe() const {
  const Model& model = *loaded_.model;
  // Buffers of the largest step, which take no physical memory before they are used.
  const std::int64_t taken_bytes = device_->allocated_bytes() + loaded_.mapped_bytes() +
                                   (draft_model_ == nullptr ? 0 : draft_model_->mapped_bytes());
  const std::int64_t left_bytes =
      device_->is_host() ? available_host_bytes() / options_.parallel.ranks_on_host - taken_bytes
                         : device_->available_bytes();
  return {.rank = options_.parallel.rank,
          .architecture = loaded_.config.architecture,
          .dtype = std::string(dtype_name(loaded_.dtype)),
          .device = std::string(device_->name()),
          .cpu_isa = std::string(device_->isa_name()),
          .max_model_len = static_cast<std::int32_t>(model.max_model_len()),
          .vocab_size = static_cast<std::int32_t>(model.vocab_size()),
          .hidden_size = static_cast<std::int32_t>(model.hidden_size()),
          .pooler = pooler_,
          .canonical_shards = model.canonical_shards(),
          .max_item_embeds = static_cast<std::int32_t>(model.max_item_rows()),
          .encoder_key = encoder_key(loaded_.config, loaded_.dtype, options_.quantization),
          .two_way_items = model.sees_items_both_ways(),
          .kv_cache_specs = kv_cache_specs(),
          .num_draft_layers =
              draft_model_ == nullptr
                  ? 0
                  : static_cast<std::int32_t>(
                        cache_specs(draft_model_->model(), draft_model_->dtype(), options_).size()),
          .weight_bytes = model.weight_bytes() +
                          (draft_model_ == nullptr ? 0 : draft_model_->model().weight_bytes()),
          .available_bytes = std::max<std::int64_t>(0, left_bytes)};
}

Result<void> ModelRunner::initialize_kv_cache(const KVCacheConfig& config) {
  if (kv_blend_ != nullptr) {
    RETURN_IF_ERROR(loaded_.model->check_blend());
    if (has_draft_head())
      return Error{ErrorCode::kUnsupported,
                   "a draft head takes the states of all tokens, and with BlendConnector not all "
                   "are computed",
                   "speculative-config"};
  }
  open_step_.reset();
  batch_.reset();
  if (encoder_) encoder_->clear();
  layer_caches_.clear();
  cache_ = {};  // of an engine before: there may be no room for both
  // A rank that still computes for an earlier engine is not kept waiting for this one. Nor is any
  // sample awaited without a batch, also if what follows fails.
  fail_group({ErrorCode::kUnavailable, "the workers serve another engine"});
  leave_group();
  num_samples_taken_ += awaited_samples_.size();
  awaited_samples_.clear();
  const std::vector<LayerCacheSpec> specs = kv_cache_specs();
  const std::size_t num_layers =
      specs.empty() ? 0 : static_cast<std::size_t>(specs.back().layer) + 1;
  std::vector<LayerKvCache> caches(num_layers);
  std::vector<GroupBlockSizes> block_sizes;
  // A stage keeps those of the pool's tensors that its layers use.
  const auto is_here = [&](std::int32_t layer) {
    return std::ranges::find(specs, layer, &LayerCacheSpec::layer) != specs.end();
  };
  const std::size_t num_tensors = config.page_bytes.size();
  std::vector<bool> is_used(num_tensors);
  for (const KVCacheGroup& group : config.groups) {
    CHECK(group.layers.size() <= num_tensors, group.layers.size(), num_tensors);
    for (std::size_t i = 0; i < group.layers.size(); ++i)
      if (is_here(group.layers[i])) is_used[i] = true;
  }
  std::vector<CacheTensor> tensors(num_tensors);
  std::int64_t num_bytes = 0;
  for (std::size_t i = 0; i < num_tensors; ++i) {
    if (!is_used[i]) continue;
    tensors[i] = {.offset = num_bytes, .page_bytes = config.page_bytes[i]};
    num_bytes += config.num_blocks * config.page_bytes[i];
  }
  DeviceMemory memory;
  ASSIGN_OR_RETURN(memory, device_->allocate(static_cast<std::size_t>(num_bytes), "the KV cache"));
  for (std::size_t g = 0; g < config.groups.size(); ++g) {
    const KVCacheGroup& group = config.groups[g];
    block_sizes.push_back(
        {group.spec.block_size, kernel_block_size(group.spec), block_content(group.spec)});
    for (std::size_t i = 0; i < group.layers.size(); ++i) {
      if (!is_here(group.layers[i])) continue;
      LayerKvCache& cache = caches.at(static_cast<std::size_t>(group.layers[i]));
      CHECK(std::holds_alternative<std::monostate>(cache.pages), group.layers[i]);
      auto pages = layer_cache(group.layer_spec(i), g, memory.data() + tensors[i].offset,
                               config.num_blocks, config.page_bytes[i]);
      if (!pages.ok())
        return Error{pages.error().code,
                     "layer " + std::to_string(group.layers[i]) + ": " + pages.error().message};
      cache = std::move(pages).value();
    }
  }
  for (const LayerCacheSpec& layer : specs)
    CHECK(layer.spec.page_bytes() == 0 || !std::holds_alternative<std::monostate>(
                                              caches[static_cast<std::size_t>(layer.layer)].pages),
          layer.layer);
  cache_config_ = config;
  cache_tensors_ = std::move(tensors);
  cache_ = std::move(memory);
  batch_.emplace(block_sizes,
                 InputBatch::Options{.two_way_items = loaded_.model->sees_items_both_ways(),
                                     .max_two_way_span = smallest_window(loaded_.config),
                                     .is_encoder = loaded_.model->is_encoder(),
                                     .encoder_decoder = has_cross_attention(specs),
                                     .transcription = transcription_,
                                     .pooling = pooler_.type,
                                     .gives_all = has_draft_head()});
  if (draft_model_ != nullptr) {
    const std::int32_t first =
        first_draft_layer(loaded_.model->kv_cache_specs(options_.block_size, loaded_.dtype));
    const auto first_other = caches.begin() + first;
    draft_model_->set_cache({first_other, caches.end()}, batch_->tables(),
                            /*are_loaded=*/!extensions_.empty());
    caches.erase(first_other, caches.end());
  }
  layer_caches_ = std::move(caches);
  const KVCacheMemory pages = cache_memory();
  for (const auto& extension : extensions_) RETURN_IF_ERROR(extension->register_kv_caches(pages));
  return {};
}

Result<void> ModelRunner::follow_transcription_rules() {
  if (!has_cross_attention(kv_cache_specs())) return {};
  ASSIGN_OR_RETURN(TranscriptionRules rules, load_transcription_rules(options_.model));
  transcription_ = std::make_shared<const TranscriptionRules>(std::move(rules));
  return {};
}

KVCacheMemory ModelRunner::cache_memory() {
  KVCacheMemory memory{.device = device_.get(), .config = cache_config_, .groups = {}};
  const std::vector<LayerCacheSpec> specs = kv_cache_specs();
  for (const KVCacheGroup& group : cache_config_.groups) {
    auto& layers = memory.groups.emplace_back();
    for (std::size_t i = 0; i < group.layers.size(); ++i) {
      if (std::ranges::find(specs, group.layers[i], &LayerCacheSpec::layer) == specs.end())
        continue;  // of another stage
      layers.push_back({group.layers[i], cache_.data() + cache_tensors_[i].offset,
                        cache_tensors_[i].page_bytes});
    }
  }
  return memory;
}

Result<void> ModelRunner::warm_up() {
  auto extensions = std::exchange(extensions_, {});
  auto layer_hooks = std::exchange(layer_hooks_, {});
  KvBlend* const kv_blend = std::exchange(kv_blend_, nullptr);
  auto ec_connector = std::exchange(ec_connector_, nullptr);
  Result<void> done = run_warm_up_steps();
  extensions_ = std::move(extensions);
  layer_hooks_ = std::move(layer_hooks);
  kv_blend_ = kv_blend;
  ec_connector_ = std::move(ec_connector);
  return done;
}

Result<void> ModelRunner::run_warm_up_steps() {
  CHECK(batch_.has_value());
  const auto num_groups = static_cast<std::int32_t>(cache_config_.groups.size());
  // Each group has blocks of its own, behind the null block.
  const std::int32_t num_blocks = num_groups == 0 ? 0 : (cache_config_.num_blocks - 1) / num_groups;
  std::int64_t num_tokens =
      std::min({kNumWarmUpTokens, std::int64_t{options_.max_num_batched_tokens},
                loaded_.model->max_model_len() - 1});
  for (const KVCacheGroup& group : cache_config_.groups)
    num_tokens = std::min(num_tokens, std::int64_t{num_blocks} * group.spec.block_size - 1);
  if (num_tokens < 1) return {};
  for (const KVCacheGroup& group : cache_config_.groups)
    if (group.spec.is<CrossAttentionSpec>()) return {};  // there is no input to attend to

  NewRequestData request{.id = kWarmUpRequest,
                         .token_ids = std::vector<TokenId>(static_cast<std::size_t>(num_tokens)),
                         .num_prompt_tokens = static_cast<std::int32_t>(num_tokens)};
  request.params.temperature = 1;
  BlockId block = kNullBlock;
  for (const KVCacheGroup& group : cache_config_.groups) {
    std::vector<BlockId>& blocks = request.block_ids.emplace_back();
    while (std::ssize(blocks) * group.spec.block_size <= num_tokens) blocks.push_back(++block);
  }
  SchedulerOutput prefill{.step = 1};
  prefill.new_requests.push_back(std::move(request));
  prefill.scheduled_ids = {kWarmUpRequest};
  prefill.num_scheduled_tokens = {static_cast<std::int32_t>(num_tokens)};
  prefill.total_num_scheduled_tokens = static_cast<std::int32_t>(num_tokens);
  RETURN_IF_ERROR(execute(prefill));
  if (pooler_.type != PoolingType::kNone) {
    RETURN_IF_ERROR(execute({.step = 2, .finished_ids = {kWarmUpRequest}}));
    return {};
  }
  SchedulerOutput decode{.step = 2};
  decode.cached_requests.ids = {kWarmUpRequest};
  decode.cached_requests.num_computed_tokens = {static_cast<std::int32_t>(num_tokens)};
  decode.scheduled_ids = {kWarmUpRequest};
  decode.num_scheduled_tokens = {1};
  decode.total_num_scheduled_tokens = 1;
  RETURN_IF_ERROR(execute(decode));
  RETURN_IF_ERROR(execute({.step = 3, .finished_ids = {kWarmUpRequest}}));
  return {};
}

}  // namespace troupe
