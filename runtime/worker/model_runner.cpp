#include "runtime/worker/model_runner.hpp"

#include <algorithm>

#include "runtime/worker/communicators/create.hpp"
#include "runtime/worker/device_communicator.hpp"
#include "runtime/worker/host_memory.hpp"

namespace troupe {

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
  max_draft_rows_ = step.max_draft_rows;
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
  if (draft_model_ != nullptr) draft_model_->copy_blocks(step.block_copies);
}

}  // namespace troupe
