#include "tests/support/replay_models_driver.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "kernels/backend.hpp"
#include "runtime/cache/kv_cache_config.hpp"

namespace troupe {
namespace {

/// A job on its way through the steps.
struct Running {
  const DriverJob* job = nullptr;
  DriverResult* result = nullptr;
  RequestId id{};
  std::vector<TokenId> tokens;
  BlockTable blocks;
  std::int32_t num_computed = 0;
  std::vector<TokenId> next_drafts;  ///< by the runner
  std::vector<TokenId> drafts;       ///< of the step under way
  std::int32_t num_rejected = 0;     ///< of the step before
  bool known = false;                ///< to the runner

  [[nodiscard]] std::int32_t num_left() const {
    return static_cast<std::int32_t>(tokens.size()) - num_computed;
  }
};

class Driver {
 public:
  Driver(DrivenRunner& driven, const DriverSchedule& schedule)
      : driven_(driven), schedule_(schedule) {
    free_blocks_.resize(static_cast<std::size_t>(driven.cache.num_blocks - 1));
    std::iota(free_blocks_.begin(), free_blocks_.end(), 1);
    std::shuffle(free_blocks_.begin(), free_blocks_.end(), std::mt19937(1));
  }

  std::vector<DriverResult> run(std::span<const DriverJob> jobs) {
    std::vector<DriverResult> results(jobs.size());
    std::deque<Running> waiting;
    for (std::size_t i = 0; i < jobs.size(); ++i)
      waiting.push_back({.job = &jobs[i],
                         .result = &results[i],
                         .id = RequestId{i + 1},
                         .tokens = jobs[i].prompt,
                         .blocks = {}});
    while (!waiting.empty() || !running_.empty()) {
      while (!waiting.empty() && running_.size() < schedule_.max_running) {
        running_.push_back(std::move(waiting.front()));
        waiting.pop_front();
        running_.back().blocks.resize(driven_.cache.groups.size());
      }
      step();
    }
    SchedulerOutput last;
    last.finished_ids = std::move(finished_);
    execute(last);
    return results;
  }

 private:
  void step() {
    SchedulerOutput output;
    output.step = ++num_steps_;
    if (num_steps_ % static_cast<std::uint64_t>(schedule_.draft_every) == 0)
      output.num_drafts_to_make = driven_.num_draft_tokens;
    const bool stopped = schedule_.stop_begin <= num_steps_ && num_steps_ < schedule_.stop_end;
    if (stopped) output.num_drafts_to_make = output.max_draft_rows = 0;
    output.finished_ids = std::move(finished_);
    finished_.clear();
    preempt(output);
    std::int32_t budget = schedule_.token_budget;
    std::vector<Running*> scheduled;
    for (Running& request : running_) {
      if (!request.known && schedule_.share_prefix) adopt_prefix(request);
      std::int32_t num_tokens = std::min(budget, request.num_left());
      if (!driven_.encoder_decoder) num_tokens = without_cut(request, num_tokens);
      if (num_tokens == 0) continue;
      if (num_tokens == request.num_left()) {
        if (schedule_.oracle != nullptr) make_drafts(request, budget - num_tokens);
        if (driven_.num_draft_tokens > 0) take_drafts(request, budget - num_tokens);
        num_tokens += static_cast<std::int32_t>(request.drafts.size());
      }
      schedule(request, num_tokens, output);
      scheduled.push_back(&request);
      budget -= num_tokens;
    }
    const ModelRunnerOutput done = execute(output);
    if (stopped) driven_.num_stopped_passes += done.drafting.num_passes;
    take(done, scheduled, output);
  }

  /// Fewer tokens where they would end within an item: its tokens see each other.
  static std::int32_t without_cut(const Running& request, std::int32_t num_tokens) {
    const std::int32_t end = request.num_computed + num_tokens;
    for (const MultiModalFeature& item : request.job->items)
      if (item.offset < end && end < item.offset + item.length)
        return std::max(item.offset - request.num_computed, 0);
    return num_tokens;
  }

  ModelRunnerOutput execute(const SchedulerOutput& output) {
    Result<ModelRunnerOutput> done = driven_.runner->execute(output);
    if (!done.ok()) throw std::runtime_error(done.error().message);
    return std::move(done).value();
  }

  void preempt(SchedulerOutput& output) {
    if (schedule_.preempt_every == 0 ||
        num_steps_ % static_cast<std::uint64_t>(schedule_.preempt_every) != 0)
      return;
    Running& victim = running_[num_steps_ % running_.size()];
    if (!victim.known) return;
    output.preempted_ids.push_back(victim.id);
    release(victim);
    victim.known = false;
    victim.num_computed = 0;
    victim.next_drafts.clear();
    victim.num_rejected = 0;
  }

  /// No more than lead to the end.
  void take_drafts(Running& request, std::int32_t budget) const {
    const std::ptrdiff_t num_missing =
        request.job->num_outputs - std::ssize(request.result->tokens);
    budget = static_cast<std::int32_t>(std::min<std::ptrdiff_t>(budget, num_missing - 1));
    request.drafts = std::move(request.next_drafts);
    request.next_drafts.clear();
    if (std::ssize(request.drafts) > budget)
      request.drafts.resize(static_cast<std::size_t>(budget));
    if (schedule_.plan_ahead) std::ranges::fill(request.drafts, -1);
  }

  void make_drafts(Running& request, std::int32_t budget) {
    const auto& said = (*schedule_.oracle)[static_cast<std::size_t>(value(request.id) - 1)].tokens;
    const std::size_t begin = request.result->tokens.size();
    for (std::size_t i = begin; i + 1 < said.size() && i < begin + 3 && budget > 0; ++i, --budget) {
      const std::uint64_t spoilt = (num_steps_ + i) % 5;
      request.drafts.push_back(spoilt == 0 ? -1 : spoilt == 1 ? said[i] ^ 1 : said[i]);
    }
  }

  /// Starts behind the longest run of full blocks that another request has computed.
  void adopt_prefix(Running& request) {
    const std::int32_t block_size = driven_.cache.groups.front().spec.block_size;
    for (const Running& other : running_) {
      const auto limit = std::min<std::ptrdiff_t>(other.num_computed, request.num_left() - 1);
      const auto end = std::mismatch(request.tokens.begin(), request.tokens.begin() + limit,
                                     other.tokens.begin());
      const auto num_blocks = (end.first - request.tokens.begin()) / block_size;
      if (num_blocks * block_size <= request.num_computed) continue;
      request.num_computed = static_cast<std::int32_t>(num_blocks) * block_size;
      for (std::size_t group = 0; group < request.blocks.size(); ++group)
        request.blocks[group].assign(other.blocks[group].begin(),
                                     other.blocks[group].begin() + num_blocks);
    }
  }

  void schedule(Running& request, std::int32_t num_tokens, SchedulerOutput& output) {
    CachedRequestData& cached = output.cached_requests;
    for (std::size_t group = 0; group < request.blocks.size(); ++group) {
      const std::int32_t block_size = driven_.cache.groups[group].spec.block_size;
      auto num_blocks = static_cast<std::size_t>(
          (request.num_computed + num_tokens + driven_.num_draft_tokens + block_size - 1) /
          block_size);
      if (const auto* states = std::get_if<MambaSpec>(&driven_.cache.groups[group].spec.kind))
        num_blocks += static_cast<std::size_t>(states->num_speculative_blocks);
      if (driven_.cache.groups[group].spec.is<CrossAttentionSpec>())
        num_blocks = static_cast<std::size_t>((request.job->items.front().length + block_size - 1) /
                                              block_size);
      std::vector<BlockId>& blocks = request.blocks[group];
      const std::size_t num_old = blocks.size();
      while (blocks.size() < num_blocks) {
        if (free_blocks_.empty()) throw std::runtime_error("the driver's cache is too small");
        blocks.push_back(free_blocks_.back());
        free_blocks_.pop_back();
      }
      if (!request.known) continue;
      cached.new_block_ids.insert(cached.new_block_ids.end(),
                                  blocks.begin() + static_cast<std::ptrdiff_t>(num_old),
                                  blocks.end());
      cached.new_block_counts.push_back(static_cast<std::int32_t>(blocks.size() - num_old));
    }
    const auto num_prompt_tokens = static_cast<std::int32_t>(request.job->prompt.size());
    if (request.known) {
      cached.ids.push_back(request.id);
      cached.num_computed_tokens.push_back(request.num_computed +
                                           (schedule_.plan_ahead ? request.num_rejected : 0));
      cached.num_output_tokens.push_back(static_cast<std::int32_t>(request.tokens.size()) -
                                         num_prompt_tokens);
    } else {
      NewRequestData& data = output.new_requests.emplace_back();
      data.id = request.id;
      data.token_ids = request.tokens;
      data.num_prompt_tokens = num_prompt_tokens;
      data.params = request.job->params;
      data.mm_features = request.job->items;
      data.lora = request.job->lora;
      data.block_ids = request.blocks;
      data.num_computed_tokens = request.num_computed;
      request.known = true;
    }
    output.scheduled_ids.push_back(request.id);
    output.num_scheduled_tokens.push_back(num_tokens);
    if (schedule_.oracle != nullptr || driven_.num_draft_tokens > 0) {
      output.num_draft_tokens.push_back(static_cast<std::int32_t>(request.drafts.size()));
      output.draft_token_ids.insert(output.draft_token_ids.end(), request.drafts.begin(),
                                    request.drafts.end());
    }
    output.total_num_scheduled_tokens += num_tokens;
  }

  void take(const ModelRunnerOutput& done, const std::vector<Running*>& scheduled,
            const SchedulerOutput& output) {
    if (done.ids != output.scheduled_ids)
      throw std::runtime_error("the runner's output is not of the scheduled requests");
    std::size_t next_token = 0;
    std::size_t next_row = 0;
    std::size_t next_entry = 0;
    for (std::size_t i = 0; i < scheduled.size(); ++i) {
      Running& request = *scheduled[i];
      request.num_computed += output.num_scheduled_tokens[i];
      request.num_rejected = 0;
      if (!request.drafts.empty()) {
        const auto num_drafts = static_cast<std::int32_t>(request.drafts.size());
        if (done.num_sampled[i] < 1 || done.num_sampled[i] > num_drafts + 1)
          throw std::runtime_error("a row has a number of tokens that cannot be");
        request.num_rejected = num_drafts - (done.num_sampled[i] - 1);
        request.num_computed -= request.num_rejected;
        driven_.num_drafted += num_drafts;
        driven_.num_accepted += done.num_sampled[i] - 1;
        request.drafts.clear();
      }
      for (std::int32_t n = 0; n < done.num_sampled[i]; ++n) {
        request.tokens.push_back(done.sampled_token_ids[next_token]);
        request.result->tokens.push_back(done.sampled_token_ids[next_token++]);
      }
      const std::int32_t num_rows = done.num_logprob_rows.empty() ? 0 : done.num_logprob_rows[i];
      for (std::int32_t n = 0; n < num_rows; ++n)
        copy_row(done.logprobs, next_row++, next_entry, request.result->logprobs);
    }
    for (const PromptLogprobs& scores : done.prompt_logprobs) {
      Running& request = *std::ranges::find(scheduled, scores.id, &Running::id).operator*();
      // All of them; once more after a preemption.
      request.result->prompt_logprobs = {};
      std::size_t entry = 0;
      for (std::size_t row = 0; row < scores.rows.row_sizes.size(); ++row)
        copy_row(scores.rows, row, entry, request.result->prompt_logprobs);
    }
    for (const auto& [id, error] : done.request_errors)
      (*std::ranges::find(scheduled, id, &Running::id))->result->errors.push_back(error);
    for (const auto& [id, drafts] : done.draft_token_ids)
      (*std::ranges::find(scheduled, id, &Running::id))->next_drafts = drafts;
    std::erase_if(running_, [&](Running& request) { return finish(request); });
  }

  static void copy_row(const LogprobRows& from, std::size_t row, std::size_t& entry,
                       LogprobRows& to) {
    const std::int32_t size = from.row_sizes[row];
    to.row_sizes.push_back(size);
    for (std::int32_t n = 0; n < size; ++n, ++entry) {
      to.token_ids.push_back(from.token_ids[entry]);
      to.logprobs.push_back(from.logprobs[entry]);
      to.ranks.push_back(from.ranks[entry]);
    }
  }

  bool finish(Running& request) {
    const auto num_outputs = static_cast<std::int32_t>(request.result->tokens.size());
    if (num_outputs < request.job->num_outputs && request.result->errors.empty()) return false;
    finished_.push_back(request.id);
    release(request);
    return true;
  }

  /// Shared blocks are never handed out again, which spares counting their users.
  void release(Running& request) {
    for (std::vector<BlockId>& blocks : request.blocks) {
      if (!schedule_.share_prefix)
        free_blocks_.insert(free_blocks_.begin(), blocks.begin(), blocks.end());
      blocks.clear();
    }
  }

  DrivenRunner& driven_;
  DriverSchedule schedule_;
  std::vector<BlockId> free_blocks_;
  std::vector<Running> running_;
  std::vector<RequestId> finished_;
  std::uint64_t num_steps_ = 0;
};

}  // namespace

KVCacheConfig plan_cache(std::vector<KVCacheSpec> specs, std::int32_t num_blocks) {
  constexpr std::int32_t kMaxDrafts = 3;
  constexpr std::int32_t kMaxTokens = 2048;
  plan_states(specs, {.num_draft_tokens = kMaxDrafts, .max_model_len = kMaxTokens});
  KVCacheConfig config;
  config.num_blocks = num_blocks;
  for (std::size_t layer = 0; layer < specs.size(); ++layer) {
    auto group = std::ranges::find(config.groups, specs[layer], &KVCacheGroup::spec);
    if (group == config.groups.end())
      group = config.groups.insert(config.groups.end(), {.spec = specs[layer], .layers = {}});
    group->layers.push_back(static_cast<std::int32_t>(layer));
    config.page_bytes.resize(std::max(config.page_bytes.size(), group->layers.size()),
                             specs.front().page_bytes());
  }
  return config;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx})
    if (why_unavailable(isa).empty()) names.emplace_back(to_string(isa));
  return names;
}

DrivenRunner load_driven_runner(const DriverModelOptions& options) {
  WorkerOptions worker;
  worker.model = options.folder;
  worker.dtype = options.dtype;
  worker.quantization = options.quantization;
  worker.packed_weights_dir = options.packed_weights_dir;
  worker.kv_cache_dtype = options.kv_cache_dtype;
  worker.speculative = options.speculative;
  worker.device = options.device;
  worker.cpu_isa = options.isa;
  worker.threads = options.threads;
  worker.block_size = options.block_size;
  worker.max_num_seqs = 64;
  worker.max_num_batched_tokens = 2048;
  worker.encoder_cache_size = 1024;
  worker.adapters = options.adapters;
  Result<std::unique_ptr<ModelRunner>> runner = ModelRunner::load(worker, {});
  if (!runner.ok()) throw std::runtime_error(runner.error().message);
  DrivenRunner driven{.runner = std::move(runner).value(),
                      .cache = {},
                      .num_draft_tokens = options.speculative.num_draft_tokens};
  driven.cache = plan_cache(driven.runner->describe().layer_specs(), options.num_blocks);
  driven.encoder_decoder = std::ranges::any_of(driven.cache.groups, [](const KVCacheGroup& group) {
    return group.spec.is<CrossAttentionSpec>();
  });
  const Result<void> initialized = driven.runner->initialize_kv_cache(driven.cache);
  if (!initialized.ok()) throw std::runtime_error(initialized.error().message);
  return driven;
}

std::vector<DriverResult> drive(DrivenRunner& runner, std::span<const DriverJob> jobs,
                                const DriverSchedule& schedule) {
  return Driver(runner, schedule).run(jobs);
}

std::vector<DriverResult> drive_greedily(const DriverModelOptions& options) {
  DrivenRunner runner = load_driven_runner(options);
  std::vector<DriverJob> jobs;
  for (const TokenId first : {5, 17, 101}) {
    DriverJob job{.prompt = {first, 2, 77, 300, 41, 9, 250}, .params = {}, .num_outputs = 8};
    job.params.temperature = 0;
    job.params.ignore_eos = true;
    job.params.logprobs = 3;
    job.params.prompt_logprobs = 1;
    jobs.push_back(std::move(job));
  }
  return drive(runner, jobs, {});
}

}  // namespace troupe
