#include "runtime/worker/model_runner.hpp"

#include <algorithm>
#include <limits>

#include "runtime/base/log.hpp"
#include "runtime/models/layers.hpp"
#include "runtime/models/parallel.hpp"
#include "runtime/models/pooler_config.hpp"
#include "runtime/worker/communicators/create.hpp"
#include "runtime/worker/device_communicator.hpp"
#include "runtime/worker/host_memory.hpp"
#include "runtime/worker/layer_caches.hpp"
#include "runtime/worker/logits_processors/token_bitmask.hpp"
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

/// One error per request: the first.
void add_error(RequestId id, const Error& error, ModelRunnerOutput& output) {
  for (const auto& [failed, earlier] : output.request_errors)
    if (failed == id) return;
  output.request_errors.emplace_back(id, error);
  log_warning("request failed in its step", kv("request", id), kv("error", error.message));
}

/// What counts of the output of a rank that is not the output rank.
ModelRunnerOutput reports_of(ModelRunnerOutput output) {
  return {
      .step = output.step, .request_errors = std::move(output.request_errors), .rank = output.rank};
}

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
  ASSIGN_OR_RETURN(LoadedModel loaded, load_model(options.model, *device,
                                                  {.dtype = options.dtype,
                                                   .quantization = options.quantization,
                                                   .packed_weights_dir = options.packed_weights_dir,
                                                   .mmproj = options.mmproj,
                                                   .max_model_len = options.max_model_len,
                                                   .max_text_tokens = max_text_tokens,
                                                   .parallel = options.parallel},
                                                  progress));
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
  if (options.speculative.has_draft_layers() && options.parallel.is_last_stage()) {
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
                                     .pooling = pooler_.type,
                                     .gives_all = has_draft_head()});
  if (draft_model_ != nullptr) {
    const std::int32_t first =
        first_draft_layer(loaded_.model->kv_cache_specs(options_.block_size, loaded_.dtype));
    const auto first_other = caches.begin() + first;
    draft_model_->set_cache({first_other, caches.end()}, batch_->tables());
    caches.erase(first_other, caches.end());
  }
  layer_caches_ = std::move(caches);
  const KVCacheMemory pages = cache_memory();
  for (const auto& extension : extensions_) RETURN_IF_ERROR(extension->register_kv_caches(pages));
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

bool ModelRunner::is_output_rank() const noexcept {
  return options_.parallel.rank == options_.parallel.output_rank();
}

Result<void> ModelRunner::join_group(const JoinGroup& join) {
  const ParallelConfig& parallel = options_.parallel;
  CHECK(parallel.world_size() > 1, join.generation);
  open_step_.reset();  // it has failed, here or on another rank
  // What had been sent before a failure counts: its step may have given a result.
  take_all_samples();
  num_samples_taken_ += awaited_samples_.size();
  awaited_samples_.clear();
  leave_group();
  const int num_busy_threads = device_->pool().num_threads() * parallel.ranks_on_host;
  // The other actors of the engine need a core as well.
  const bool spin = num_busy_threads + 2 <= ThreadPool::num_usable_cores();
  const CommunicatorOptions options{.rendezvous = parallel.rendezvous,
                                    .secret = parallel.secret,
                                    .generation = join.generation,
                                    .rank = parallel.rank,
                                    .size = parallel.world_size(),
                                    .group_size = parallel.tensor_parallel_size,
                                    .timeout_s = parallel.timeout_s,
                                    .spin = spin};
  ASSIGN_OR_RETURN(peers_, create_communicator(options));
  ASSIGN_OR_RETURN(device_peers_, create_device_communicator(options, *device_, *peers_));
  return {};
}

void ModelRunner::leave_group() {
  device_peers_.reset();
  peers_.reset();
}

Result<void> ModelRunner::step_status() {
  // This first: it has a deadline, and a device may wait for peers that are gone.
  if (peers_ != nullptr) RETURN_IF_ERROR(model_peers()->status());
  return device_->synchronize();
}

void ModelRunner::fail_group(const Error& reason) {
  if (peers_ != nullptr) peers_->abort(reason);
}

void ModelRunner::take_samples(const SchedulerOutput& step) {
  std::uint64_t num_needed = 0;
  for (const std::vector<RequestId>* ids :
       {&step.scheduled_ids, &step.finished_ids, &step.preempted_ids}) {
    for (const RequestId id : *ids)
      if (const WorkerRequest* request = batch_->find(id))
        num_needed = std::max(num_needed, request->samples_index);
  }
  while (num_samples_taken_ < num_needed && take_oldest_samples()) {
  }
}

void ModelRunner::take_all_samples() {
  while (!awaited_samples_.empty() && take_oldest_samples()) {
  }
}

bool ModelRunner::take_oldest_samples() {
  const std::vector<AwaitedSamples>& awaited = awaited_samples_.front();
  std::size_t num_slots = 0;
  for (const AwaitedSamples& request : awaited) num_slots += request.num_slots;
  step_samples_.resize(num_slots);
  if (!peers_->recv(std::as_writable_bytes(std::span(step_samples_)),
                    options_.parallel.output_rank()))
    return false;
  auto slots = std::span<const TokenId>(step_samples_);
  for (const AwaitedSamples& expected : awaited) {
    const auto tokens = slots.first(expected.num_slots);
    slots = slots.subspan(expected.num_slots);
    WorkerRequest* request = batch_->find(expected.id);
    if (request == nullptr) continue;
    for (std::size_t i = 0; i < tokens.size() && (i == 0 || tokens[i] != kNoToken); ++i)
      InputBatch::append_token(*request, tokens[i]);
  }
  awaited_samples_.pop_front();
  ++num_samples_taken_;
  return true;
}

/// The output rank's tokens of this step go to all others, who expect them.
void ModelRunner::send_samples(std::span<const InputBatch::Row> rows) {
  std::vector<AwaitedSamples> awaited;
  step_samples_.clear();
  for (const InputBatch::Row& row : rows) {
    if (!row.samples) continue;
    const std::size_t num_slots = 1 + row.drafts.size();
    awaited.push_back({row.request->id, num_slots});
    if (!is_output_rank()) continue;
    const auto num_known =
        static_cast<std::size_t>(row.request->num_computed_tokens + row.num_tokens) -
        row.drafts.size();
    const auto tokens = std::span<const TokenId>(row.request->token_ids).subspan(num_known);
    CHECK(tokens.size() <= num_slots, tokens.size(), num_slots);
    step_samples_.insert(step_samples_.end(), tokens.begin(), tokens.end());
    step_samples_.resize(step_samples_.size() + num_slots - tokens.size(), kNoToken);
  }
  if (awaited.empty()) return;
  if (!is_output_rank()) {
    awaited_samples_.push_back(std::move(awaited));
    for (const InputBatch::Row& row : rows)
      if (row.samples) row.request->samples_index = num_samples_taken_ + awaited_samples_.size();
    return;
  }
  peers_->broadcast(std::as_writable_bytes(std::span(step_samples_)), peers_->rank());
}

void ModelRunner::add_extension(std::unique_ptr<StepExtension> extension) {
  CHECK(extension != nullptr && !open_step_);
  if (extension->has_layer_hooks()) layer_hooks_.push_back(extension.get());
  if (KvBlend* const blend = extension->kv_blend()) {
    CHECK(kv_blend_ == nullptr);
    kv_blend_ = blend;
  }
  extensions_.push_back(std::move(extension));
}

Result<void> ModelRunner::set_ec_connector(std::unique_ptr<ECConnectorWorker> connector) {
  CHECK(connector != nullptr && !open_step_);
  if (!encoder_) return {};
  RETURN_IF_ERROR(connector->register_caches(*device_, encoder_->outputs()));
  ec_connector_ = std::move(connector);
  return {};
}

Result<ModelRunnerOutput> ModelRunner::execute(const SchedulerOutput& step) {
  RETURN_IF_ERROR(execute_model(step));
  return sample_tokens({.step = step.step});
}

Result<void> ModelRunner::execute_model(const SchedulerOutput& step) {
  if (const auto unsampled = std::exchange(open_step_, std::nullopt))
    return Error{ErrorCode::kInternal, "step " + std::to_string(step.step) + " came before step " +
                                           std::to_string(*unsampled) + " was sampled"};
  const Result<void> computed = compute(step);
  // Of weights that are gone it has computed anything.
  RETURN_IF_ERROR(check_health());
  RETURN_IF_ERROR(computed);
  open_step_ = step.step;
  return {};
}

Result<ModelRunnerOutput> ModelRunner::sample_tokens(const GrammarOutput& grammar) {
  CHECK(open_step_ == grammar.step, grammar.step);
  open_step_.reset();
  Result<ModelRunnerOutput> result = sample(grammar);
  RETURN_IF_ERROR(check_health());
  if (!result.ok()) return result;
  for (const auto& extension : extensions_) extension->report(*result);
  if (ec_connector_ != nullptr) result->ec_connector = ec_connector_->get_finished();
  if (encoder_) result->ec_connector.encoded_ahead = encoder_->take_encoded_ahead();
  return result;
}

Result<void> ModelRunner::compute(const SchedulerOutput& step) {
  if (!batch_) return Error{ErrorCode::kUnavailable, "the KV cache is not initialised"};
  const bool has_peers = options_.parallel.world_size() > 1;
  if (has_peers && peers_ == nullptr)
    return Error{ErrorCode::kUnavailable, "the ranks of the model have not met"};
  if (has_peers) {
    take_samples(step);
    RETURN_IF_ERROR(peers_->status());
  }
  batch_->update(step);
  num_drafts_to_make_ = step.num_drafts_to_make;
  if (suffix_proposer_)
    for (const RequestId id : step.finished_ids) suffix_proposer_->finish(id);
  move_blocks(step);
  RETURN_IF_ERROR(encode_items(step));
  batch_->build(loaded_.model->vocab_size(), encoder_ ? &encoder_->outputs() : nullptr);
  for (const auto& extension : extensions_) RETURN_IF_ERROR(extension->before_forward(step));

  ForwardBatch batch = batch_->forward_batch();
  batch.layer_hooks = layer_hooks_;
  batch.kv_blend = kv_blend_;
  if (adapters_) {
    RETURN_IF_ERROR(find_adapters(step, batch.adapter_ids));
    batch.adapters = step_adapters_;
  }
  if (batch.num_tokens() == 0) return {};
  CHECK(batch.num_tokens() <= options_.max_num_batched_tokens, batch.num_tokens());
  step_hidden_ = Matrix(floats(hidden_), batch.num_outputs(), loaded_.model->hidden_size());
  step_logits_ = {};
  first_logits_ = 0;
  loaded_.model->forward(batch, layer_caches_, model_peers(), step_hidden_);
  RETURN_IF_ERROR(step_status());
  for (const auto& extension : extensions_) RETURN_IF_ERROR(extension->after_forward());
  return {};
}

Result<void> ModelRunner::find_adapters(const SchedulerOutput& step,
                                        std::span<const std::int32_t> ids) {
  adapter_errors_.clear();
  for (const NewRequestData& request : step.new_requests)
    if (request.lora) adapters_->remember(*request.lora);
  if (adapters_->has_nameless() && !step.finished_ids.empty())
    adapters_->release_unused(batch_->adapters_in_use());
  std::vector<std::int32_t> wanted(ids.begin(), ids.end());
  const auto fail = [&](std::size_t sequence, const Error& error) {
    adapter_errors_.emplace(batch_->rows()[sequence].request->id, error);
    wanted[sequence] = 0;
  };
  for (bool all_found = false; !all_found;) {
    std::size_t failed = 0;
    auto found = adapters_->use(wanted, failed);
    all_found = found.ok();
    if (all_found)
      step_adapters_ = std::move(found).value();
    else
      fail(failed, found.error());
  }
  const bool any_wanted = std::ranges::any_of(ids, [](std::int32_t id) { return id != 0; });
  if (peers_ == nullptr || peers_->group_size() == 1 || !any_wanted) return {};
  // Ranks that add up their parts of a product with an adapter need the same adapters.
  std::vector<float> num_failed(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) num_failed[i] = wanted[i] == ids[i] ? 0 : 1;
  peers_->all_reduce(num_failed);
  RETURN_IF_ERROR(peers_->status());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (num_failed[i] == 0) continue;
    fail(i, {ErrorCode::kUnavailable, "another rank cannot read the adapter again", "model"});
    step_adapters_[i] = nullptr;
  }
  return {};
}

Result<void> ModelRunner::encode_items(const SchedulerOutput& step) {
  if (!encoder_) return {};
  encoder_->update(step);
  if (ec_connector_ != nullptr && !step.ec_connector_metadata.empty())
    ec_connector_->start_load_caches(step.ec_connector_metadata);
  std::vector<const MultiModalFeature*> items;
  for (const auto& [id, item] : step.scheduled_encoder_inputs) {
    const WorkerRequest* const request = batch_->find(id);
    CHECK(request != nullptr && item >= 0 && item < std::ssize(request->items), value(id), item);
    items.push_back(&request->items[static_cast<std::size_t>(item)]);
  }
  const std::vector<const MultiModalFeature*> needed = batch_->needed_items();
  items.insert(items.end(), needed.begin(), needed.end());
  ASSIGN_OR_RETURN(const std::vector<std::string> encoded, encoder_->encode(items));
  if (ec_connector_ != nullptr && options_.parallel.rank == 0)
    for (const std::string& identifier : encoded) ec_connector_->save_caches(identifier);
  encoder_->encode_ahead(step);
  return {};
}

Result<ModelRunnerOutput> ModelRunner::sample(const GrammarOutput& grammar) {
  ModelRunnerOutput output;
  output.step = grammar.step;
  output.rank = options_.parallel.rank;
  const std::span<const InputBatch::Row> rows = batch_->rows();
  if (rows.empty()) return output;
  for (const auto& [id, error] : adapter_errors_) add_error(id, error, output);
  const bool has_peers = peers_ != nullptr;
  if (options_.parallel.is_last_stage()) {
    for (const InputBatch::Row& row : rows) output.ids.push_back(row.request->id);
  }
  if (pooler_.type != PoolingType::kNone) {
    if (!is_output_rank()) return reports_of(std::move(output));
    output.num_sampled.assign(rows.size(), 0);
    RETURN_IF_ERROR(pool_texts(rows, output));
    return output;
  }
  if (options_.parallel.is_last_stage()) {
    score_and_sample(rows, grammar, output);
    if ((proposer_ || suffix_proposer_) && is_output_rank()) draft_tokens(rows, output);
  }
  if (has_peers) {
    send_samples(rows);
    RETURN_IF_ERROR(peers_->status());
  }
  if (draft_model_ != nullptr) {
    // What has been sampled is computed at once, by all ranks: none of them waits for its next
    // step.
    take_all_samples();
    if (has_peers) RETURN_IF_ERROR(peers_->status());
    const ConstMatrix states = has_draft_head() && draft_model_->head()->takes_layer_inputs()
                                   ? loaded_.model->kept_layer_inputs()
                                   : step_hidden_;
    draft_model_->propose(rows, num_drafts_to_make_, states, peers_.get(), model_peers(), output);
    RETURN_IF_ERROR(step_status());
    // The first stage has placeholders where the Scheduler has: they are no drafts on any stage.
    if (options_.parallel.pipeline_parallel_size == 1)
      for (const auto& [id, drafts] : output.draft_token_ids)
        batch_->find(id)->next_drafts = drafts;
  }
  if (!is_output_rank()) return reports_of(std::move(output));
  return output;
}

void ModelRunner::move_blocks(const SchedulerOutput& step) {
  for (const CacheTensor& tensor : cache_tensors_) {
    const auto size = static_cast<std::size_t>(tensor.page_bytes);
    if (size == 0) continue;  // another stage's
    const auto page = [&](BlockId block) {
      CHECK(block >= 0 && block < cache_config_.num_blocks, block, cache_config_.num_blocks);
      return cache_.data() + tensor.offset + block * tensor.page_bytes;
    };
    for (const BlockId block : step.blocks_to_zero) device_->fill_zero(page(block), size);
    for (const auto& [source, destination] : step.block_copies)
      device_->copy(page(destination), page(source), size);
  }
}

std::span<float> ModelRunner::logits_of(std::int32_t output) {
  Model& model = *loaded_.model;
  CHECK(output >= first_logits_, output, first_logits_);
  if (output >= first_logits_ + step_logits_.num_rows) {
    std::int64_t num_rows = 1;
    while (num_rows < std::min(std::int64_t{LogitRows::kMaxRows}, step_hidden_.num_rows - output) &&
           needed_logits_[static_cast<std::size_t>(output + num_rows)])
      ++num_rows;
    first_logits_ = output;
    step_logits_ = row_logits_.compute(
        model, ConstMatrix(step_hidden_.row(output), num_rows, model.hidden_size()), model_peers());
  }
  return {step_logits_.row(output - first_logits_), static_cast<std::size_t>(model.vocab_size())};
}

void ModelRunner::find_needed_logits(std::span<const InputBatch::Row> rows) {
  needed_logits_.assign(static_cast<std::size_t>(step_hidden_.num_rows), false);
  const auto need = [&](std::int64_t begin, std::int64_t count) {
    std::fill_n(needed_logits_.begin() + begin, count, true);
  };
  for (const InputBatch::Row& row : rows) {
    need(row.first_output, row.num_scored);
    const std::int64_t num_sampling = row.samples ? 1 + std::ssize(row.drafts) : 0;
    need(row.first_output + row.num_outputs - num_sampling, num_sampling);
  }
}

void ModelRunner::score_and_sample(std::span<const InputBatch::Row> rows,
                                   const GrammarOutput& grammar, ModelRunnerOutput& output) {
  const auto width = static_cast<std::size_t>(grammar.words_per_row);
  CHECK(grammar.ids.empty() ||
            width == words_per_bitmask_row(static_cast<std::size_t>(loaded_.model->vocab_size())),
        width, loaded_.model->vocab_size());
  CHECK(grammar.num_rows.size() == grammar.ids.size(), grammar.num_rows.size(), grammar.ids.size());
  std::size_t num_masked = 0;  // of grammar.ids
  std::span<const std::int32_t> bitmask_left = grammar.bitmask;
  const bool any_logprobs = std::ranges::any_of(rows, [](const InputBatch::Row& row) {
    return row.request->sampling.params().logprobs.has_value();
  });
  find_needed_logits(rows);
  output.num_sampled.assign(rows.size(), 0);
  if (any_logprobs) output.num_logprob_rows.assign(rows.size(), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const InputBatch::Row& row = rows[i];
    WorkerRequest& request = *row.request;
    if (request.prompt_logprobs) {
      const Result<void> scored = score_prompt(row, request.prompt_logprobs->rows);
      if (!scored.ok()) add_error(request.id, scored.error(), output);
    }
    std::span<const std::int32_t> bitmask;
    if (num_masked < grammar.ids.size() && grammar.ids[num_masked] == request.id) {
      const std::int32_t num_rows = grammar.num_rows[num_masked++];
      CHECK(num_rows == 1 + std::ssize(row.drafts), value(request.id), num_rows, row.drafts.size());
      const std::size_t size = static_cast<std::size_t>(num_rows) * width;
      CHECK(size <= bitmask_left.size(), value(request.id), size, bitmask_left.size());
      bitmask = bitmask_left.first(size);
      bitmask_left = bitmask_left.subspan(size);
    }
    if (!row.samples) continue;
    if (request.prompt_logprobs) {
      output.prompt_logprobs.push_back(std::move(*request.prompt_logprobs));
      request.prompt_logprobs.reset();
    }
    output.num_sampled[i] = sample_row(row, bitmask, output);
    if (request.sampling.params().logprobs) output.num_logprob_rows[i] = output.num_sampled[i];
  }
  CHECK(num_masked == grammar.ids.size() && bitmask_left.empty(), num_masked, grammar.ids.size(),
        bitmask_left.size());
}

/// Of the rows that end with their text.
Result<void> ModelRunner::pool_texts(std::span<const InputBatch::Row> rows,
                                     ModelRunnerOutput& output) {
  ConstMatrix hidden = step_hidden_;
  std::vector<float> on_host;
  if (!device_->is_host()) {
    on_host.resize(static_cast<std::size_t>(step_hidden_.num_rows * step_hidden_.num_cols));
    device_->copy_to_host(on_host.data(), step_hidden_.data, on_host.size() * sizeof(float));
    RETURN_IF_ERROR(device_->synchronize());
    hidden = {on_host.data(), step_hidden_.num_rows, step_hidden_.num_cols};
  }
  for (const InputBatch::Row& row : rows) {
    if (!row.samples || adapter_errors_.contains(row.request->id)) continue;
    const ConstMatrix states(hidden.row(row.first_output), row.num_outputs, hidden.num_cols);
    output.pooling_outputs.emplace_back(row.request->id, loaded_.model->pool(pooler_.type, states));
  }
  return {};
}

/// Appends what this step's tokens say of the prompt tokens behind them.
Result<void> ModelRunner::score_prompt(const InputBatch::Row& row, LogprobRows& scores) {
  const WorkerRequest& request = *row.request;
  Result<void> done;
  for (std::int32_t i = 0; i < row.num_scored; ++i) {
    // All ranks compute all logits, also behind a token that cannot be scored.
    const std::span<const float> logits = logits_of(row.first_output + i);
    if (!is_output_rank() || !done.ok()) continue;
    const std::int32_t next = request.num_computed_tokens + i + 1;
    done = sampler_.append_logprobs(logits, request.token_ids[static_cast<std::size_t>(next)],
                                    *request.sampling.params().prompt_logprobs, scores);
  }
  return done;
}

/// Draws the row's next token, and one more behind each draft that has come true. How many.
/// `bitmask`: what a grammar allows in each place, one row behind the other; empty: anything.
std::int32_t ModelRunner::sample_row(const InputBatch::Row& row,
                                     std::span<const std::int32_t> bitmask,
                                     ModelRunnerOutput& output) {
  WorkerRequest& request = *row.request;
  const auto num_drafts = static_cast<std::int32_t>(row.drafts.size());
  const std::int32_t first = row.first_output + row.num_outputs - 1 - num_drafts;
  std::int32_t num_sampled = 0;
  bool ended = false;  // the row has got its last token of this step
  for (std::int32_t i = 0; i <= num_drafts; ++i) {
    // All ranks compute all logits: only the output rank knows which drafts come true.
    const std::span<float> logits = logits_of(first + i);
    if (!is_output_rank() || ended) continue;
    if (!bitmask.empty()) {
      const std::size_t width = words_per_bitmask_row(logits.size());
      apply_token_bitmask(bitmask.subspan(static_cast<std::size_t>(i) * width, width), logits);
    }
    const auto no_adapter = adapter_errors_.find(request.id);
    const Result<TokenId> sampled =
        no_adapter != adapter_errors_.end()
            ? Result<TokenId>(no_adapter->second)
            : sampler_.sample(logits, request.sampling, output.logprobs);
    if (!sampled.ok()) {
      // What came before it stands; alone, it would fail in the next step.
      ended = true;
      if (i > 0) continue;
      InputBatch::append_token(request, kNoToken);
      add_error(request.id, sampled.error(), output);
      continue;
    }
    InputBatch::append_token(request, *sampled);
    output.sampled_token_ids.push_back(*sampled);
    ++num_sampled;
    ended = i == num_drafts || row.drafts[static_cast<std::size_t>(i)] != *sampled;
  }
  return num_sampled;
}

/// For the next step, of the requests that have got a token in this one.
void ModelRunner::draft_tokens(std::span<const InputBatch::Row> rows, ModelRunnerOutput& output) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const InputBatch::Row& row = rows[i];
    WorkerRequest& request = *row.request;
    if (!row.samples || request.failed) continue;
    std::int64_t most = std::min(
        loaded_.model->max_model_len() - static_cast<std::int64_t>(request.token_ids.size()),
        std::int64_t{num_drafts_to_make_});
    if (options_.speculative.adaptive) {
      request.draft_limit.observe(static_cast<std::int32_t>(row.drafts.size()),
                                  output.num_sampled[i] - 1);
      if (most > 0) most = request.draft_limit.next(static_cast<std::int32_t>(most));
    }
    if (most <= 0) continue;
    std::vector<TokenId> drafts;
    if (suffix_proposer_) {
      drafts = suffix_proposer_->propose(request.id, request.token_ids,
                                         static_cast<std::size_t>(request.num_prompt_tokens),
                                         static_cast<std::size_t>(most));
    } else {
      const auto found = proposer_->propose(request.token_ids, static_cast<std::size_t>(most));
      drafts.assign(found.begin(), found.end());
    }
    if (!drafts.empty()) output.draft_token_ids.emplace_back(request.id, std::move(drafts));
  }
}

}  // namespace troupe
