#include "tests/support/random_workload.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "messages/encoder_input.hpp"
#include "tests/support/exact_grammar.hpp"

namespace troupe {
namespace {

/// Of an image.
constexpr std::int32_t kMaxEmbeds = 9;

std::int32_t num_speculative_blocks(const KVCacheSpec& spec) {
  const auto* states = std::get_if<MambaSpec>(&spec.kind);
  return states == nullptr ? 0 : states->num_speculative_blocks;
}

}  // namespace

RandomWorkload::RandomWorkload(std::uint32_t seed) : random_(seed) {
  KVCacheSettings settings;
  choose_groups(settings);
  config_.max_model_len = settings.max_model_len = 96;
  config_.async_scheduling = pick(0, 1) == 1;
  config_.max_num_seqs = pick(1, 8);
  config_.max_num_batched_tokens = pick(16, 64);
  config_.policy = static_cast<SchedulingPolicy>(pick(0, 2));
  config_.max_queue_bypasses = pick(0, 1) * pick(1, 3);
  config_.priority_preemption = pick(0, 1) == 1;
  config_.preemption_victim = static_cast<PreemptionVictim>(pick(0, 1));
  config_.prefix_caching = settings.prefix_caching = pick(0, 5) > 0;
  if (pick(0, 2) == 0) config_.long_prefill_token_threshold = pick(8, 32);
  const int retention = pick(0, 2);
  if (retention == 0) settings.retention_interval.reset();
  if (retention == 1) settings.retention_interval = 2 * settings.scheduler_block_size();
  settings.mamba_shared_prefix_checkpoint = pick(0, 1) == 1;
  settings.events = pick(0, 3) == 0;
  choose_drafter(settings);
  settings.max_in_flight_tokens = 2 * config_.max_num_batched_tokens;
  if (pick(0, 3) == 0) settings.watermark = 0.05;
  BOOST_REQUIRE(settings.check().ok() || retention == 1);
  // At least as many as one request needs, so that it can always continue alone.
  std::int32_t enough = 4;
  for (const KVCacheGroup& group : settings.groups)
    enough += ceil_div(config_.max_model_len + 8, group.spec.block_size) +
              num_speculative_blocks(group.spec) + 4;
  choose_connector(settings);
  // A load that is tried again reserves its blocks twice.
  if (connector_) enough *= 2;
  settings.num_blocks = config_.num_blocks = 1 + enough + pick(0, 2 * enough);
  config_.states = settings.state_positions();
  config_.has_block_ops =
      std::any_of(settings.groups.begin(), settings.groups.end(),
                  [](const KVCacheGroup& group) { return group.spec.is<MambaSpec>(); });
  manager_.emplace(settings);
  port_.emplace(*manager_);
  choose_images(settings);
  scheduler_.emplace(config_, *port_, encoder_port_ ? &*encoder_port_ : nullptr,
                     connector_ ? &*connector_ : nullptr);
}

void RandomWorkload::choose_images(const KVCacheSettings& settings) {
  if (pick(0, 1) == 1) return;
  // Models whose images see each other have neither states nor drafters that read ahead.
  const bool may_be_whole =
      config_.speculative.num_prefill_lookahead == 0 &&
      std::none_of(settings.groups.begin(), settings.groups.end(),
                   [](const KVCacheGroup& group) { return group.spec.is<MambaSpec>(); });
  images_ = {.capacity = pick(kMaxEmbeds, 3 * kMaxEmbeds),
             .whole_runs = may_be_whole && pick(0, 1) == 1};
  const auto kinds = encoder_cache_manager_kinds();
  do {
    images_.manager =
        kinds[static_cast<std::size_t>(pick(0, static_cast<int>(kinds.size()) - 1))].name;
  } while (images_.manager == kEncoderDecoderCacheManager);
  config_.max_encoder_embeds = pick(kMaxEmbeds, 3 * kMaxEmbeds);
  encoder_manager_ = make_encoder_cache_manager(images_);
  encoder_port_.emplace(*encoder_manager_);
  kinds_ += (images_.whole_runs ? " whole images, " : " images, ") + images_.manager;
  config_.encode_ahead = pick(0, 1) == 1;
  if (config_.encode_ahead) kinds_ += " ahead";
}

/// One at a place where other requests have it as well, and one more.
void RandomWorkload::add_images(EngineCoreRequest& request) {
  static const auto kData = std::make_shared<const std::vector<char>>(1);
  const auto length = static_cast<std::int32_t>(request.prompt_token_ids.size());
  std::int32_t offset = 3;
  for (int i = 0; i < 2; ++i) {
    const int number = i == 0 ? pick(0, 1) : pick(0, 5);
    MultiModalFeature item{.modality = "image",
                           .identifier = "image " + std::to_string(number),
                           .offset = offset,
                           .length = 4 + number};
    // Every third one stands in two rows.
    if (number % 3 == 0) {
      item.is_embed.assign(static_cast<std::size_t>(item.length), 1);
      item.is_embed.front() = item.is_embed[2] = 0;
    }
    if (offset + item.length > length) return;
    // A drafter that reads ahead from one image into the next needs both at once, for which the
    // cache may be too small.
    offset += item.length + pick(2 * config_.speculative.num_prefill_lookahead, 6);
    item.data = kData;
    request.mm_features.push_back(std::move(item));
  }
}

/// Simulates the workers' encoding of an image during other steps, and its report.
std::vector<std::string> RandomWorkload::encode_ahead(const SchedulerOutput& planned) {
  for (const auto& [id, index] : planned.scheduled_encoder_inputs) {
    const std::string& used = items_.at(id).at(static_cast<std::size_t>(index)).identifier;
    if (config_.encode_ahead) BOOST_TEST((ahead_ && ahead_->identifier == used));
    if (ahead_ && ahead_->identifier == used) ahead_.reset();
  }
  if (!planned.encode_ahead) return {};
  const MultiModalFeature& item = *planned.encode_ahead;
  const bool is_known = ahead_ && ahead_->identifier == item.identifier;
  if (!is_known && item.data == nullptr) return {item.identifier};
  if (!is_known) ahead_ = {item.identifier, pick(0, 5)};
  const bool had_ended = ahead_->num_slices == 0 && item.data == nullptr;
  if (ahead_->num_slices > 0) --ahead_->num_slices;
  if (ahead_->num_slices > 0 || had_ended) return {};
  ++coverage_.ahead;
  return {item.identifier};
}

void RandomWorkload::encode_images(const SchedulerOutput& planned,
                                   const std::map<RequestId, std::int32_t>& computed) {
  for (const RequestId id : planned.finished_ids) items_.erase(id);
  for (const NewRequestData& data : planned.new_requests) items_[data.id] = data.mm_features;
  if (planned.reset_encoder_cache) outputs_.clear();
  for (const std::string& identifier : planned.free_encoder_identifiers) outputs_.erase(identifier);
  for (const auto& [id, index] : planned.scheduled_encoder_inputs) {
    // One that was evicted in the same step may be there still.
    const MultiModalFeature& item = items_.at(id).at(static_cast<std::size_t>(index));
    outputs_[item.identifier] = num_embeds(item);
    ++coverage_.encoded;
  }
  for (std::size_t i = 0; i < planned.scheduled_ids.size(); ++i) {
    const RequestId id = planned.scheduled_ids[i];
    const std::int32_t begin = computed.at(id);
    const std::int32_t end = begin + planned.num_scheduled_tokens[i];
    for (const MultiModalFeature& item : items_[id])
      for (const TokenSpan& run : embed_spans(item)) {
        if (run.begin >= end || run.end <= begin) continue;
        // A worker encodes what its tokens need and is not there: of a request that was preempted
        // in the step that was to encode it, which then did not.
        coverage_.kept += outputs_.contains(item.identifier);
        outputs_[item.identifier] = num_embeds(item);
        if (images_.whole_runs) BOOST_TEST(run.end <= end);
      }
  }
  std::int32_t num_kept = 0;
  for (const auto& [identifier, size] : outputs_) num_kept += size;
  BOOST_TEST(num_kept <= images_.capacity);
}

void RandomWorkload::choose_connector(KVCacheSettings& settings) {
  const bool states =
      std::any_of(settings.groups.begin(), settings.groups.end(),
                  [](const KVCacheGroup& group) { return group.spec.is<MambaSpec>(); });
  if (states || pick(0, 1) == 1) return;
  settings.kv_connector = true;
  const bool producer = pick(0, 1) == 1;
  config_.kv_transfer = {.producer = producer,
                         .consumer = !producer || pick(0, 1) == 1,
                         .recompute_failed_loads = pick(0, 1) == 1,
                         .block_size = settings.scheduler_block_size()};
  connector_.emplace(static_cast<std::uint32_t>(pick(0, 1 << 30)), settings.groups.size() == 1);
  kinds_ += " connector";
}

void RandomWorkload::choose_groups(KVCacheSettings& settings) {
  const int num_groups = pick(1, 4);
  const bool with_states = num_groups > 1 && pick(0, 1) == 1;
  // Hits inside blocks go with blocks of 16 over units of 8.
  const bool partial = with_states && pick(0, 1) == 1;
  const MambaMode mode = pick(0, 3) == 0 ? MambaMode::kNone : MambaMode::kAlign;
  for (int g = 0; g < num_groups; ++g) {
    KVCacheSpec spec{.block_size = partial ? 16 : 8};
    const int kind = num_groups == 1 ? pick(0, 4)
                     : g == 0        ? pick(0, 1)
                     : with_states   ? 4
                                     : pick(1, 2);
    if (kind == 1) spec.kind = MlaSpec{};
    if (kind == 2) {
      const AttentionWindow window{.num_tokens = pick(2, 40)};
      spec.kind = SlidingWindowSpec{.window = window};
      if (pick(0, 3) == 0) spec.kind = SlidingWindowMlaSpec{.window = window};
      if (!with_states && pick(0, 2) == 0) spec.block_size = 16;
    }
    if (kind == 3) spec.kind = ChunkedLocalAttentionSpec{.chunk_size = 32};
    if (kind == 4) {
      MambaSpec states{.mode = mode, .num_speculative_blocks = pick(0, 3)};
      states.num_prefill_checkpoint_blocks = mode == MambaMode::kAlign ? pick(0, 1) : 0;
      if (states.num_prefill_checkpoint_blocks > 0) states.prefill_checkpoint_alignment = 8;
      spec.kind = states;
    }
    kinds_ += std::string(spec.kind_name()) + "/" + std::to_string(spec.block_size) + " ";
    settings.groups.push_back({.spec = spec});
  }
  if (partial && mode == MambaMode::kAlign) settings.prefix_match_unit = 8;
}

void RandomWorkload::choose_drafter(KVCacheSettings& settings) {
  const bool chunked = std::any_of(
      settings.groups.begin(), settings.groups.end(),
      [](const KVCacheGroup& group) { return group.spec.is<ChunkedLocalAttentionSpec>(); });
  if (pick(0, 2) > 0) return;
  const bool eagle = !chunked && pick(0, 1) == 1;
  SpeculativeConfig& speculative = config_.speculative;
  speculative.num_draft_tokens = pick(1, 3);
  if (eagle) {
    speculative.num_lookahead_tokens = speculative.num_draft_tokens;
    speculative.num_prefill_lookahead = settings.num_prefill_lookahead = 1;
    settings.eagle_block_drop = true;
    if (settings.groups.size() > 1 && pick(0, 1) == 1) settings.groups[0].eagle = true;
  }
  kinds_ += eagle ? "eagle" : "drafts";
}

void RandomWorkload::run(int num_operations) {
  for (int i = 0; i < num_operations; ++i) {
    const int operation = pick(0, 9);
    if (operation <= 3) is_blocked_ = false;
    switch (operation) {
      case 0:
      case 1:
        add();
        break;
      case 2:
        if (pick(0, 5) == 0) abort_one();
        break;
      case 3:
        if (pick(0, 20) == 0)
          static_cast<void>(run_now(scheduler_->reset_prefix_cache(pick(0, 1) == 1, 0)));
        if (pick(0, 10) == 0) fail_open_steps();
        if (pick(0, 20) == 0) scheduler_->reset_encoder_cache();
        break;
      default:
        step();
    }
    static_cast<void>(run_now(scheduler_->release_ended()));
    scheduler_->flush();
    check_blocks();
  }
  for (int i = 0; scheduler_->has_requests() || !open_.empty(); ++i) {
    BOOST_REQUIRE(i < 100000);
    step();
  }
  BOOST_TEST(alive_.empty());
  if (connector_) {
    coverage_.loads += static_cast<std::uint64_t>(connector_->num_loads);
    coverage_.failed_loads += static_cast<std::uint64_t>(connector_->num_failures);
  }
  scheduler_->flush();
  check_blocks();
  BOOST_TEST(manager_->pool().num_free_blocks() == manager_->pool().num_blocks() - 1);
}

void RandomWorkload::add() {
  if (alive_.size() > 30) return;
  EngineCoreRequest request;
  request.id = RequestId{++last_id_};
  request.priority = pick(0, 2);
  request.tenant = static_cast<std::uint32_t>(pick(0, 2));
  request.arrival_time = static_cast<double>(last_id_);
  request.params.max_tokens = pick(1, 30);
  request.params.eos_token_id = 3;
  request.params.skip_reading_prefix_cache = pick(0, 15) == 0;
  request.report_all_cache_hits = pick(0, 15) == 0;
  const int shared = pick(0, 48);
  const int family = pick(0, 1) * 100;
  for (int i = 0; i < shared; ++i) request.prompt_token_ids.edit().push_back(family + i % 7);
  const int own = pick(1, 16);
  for (int i = 0; i < own; ++i) request.prompt_token_ids.edit().push_back(pick(0, 50));
  for (int i = pick(0, 3); i > 1; --i) request.output_token_ids.push_back(pick(4, 50));
  if (pick(0, 5) == 0) {
    request.params.structured_outputs.emplace();
    without_grammar_.insert(request.id);
  }
  if (images_.capacity > 0 && pick(0, 3) > 0) add_images(request);
  alive_.insert(request.id);
  BOOST_REQUIRE(scheduler_->add_request(std::move(request), 0).ok());
}

void RandomWorkload::abort_one() {
  if (alive_.empty()) return;
  const RequestId id = *std::next(alive_.begin(), pick(0, static_cast<int>(alive_.size()) - 1));
  const auto done = scheduler_->finish_requests(std::span(&id, 1), RequestStatus::kFinishedAborted);
  BOOST_TEST(done.size() == 1u);
  alive_.erase(id);
}

/// Synchronous: plan and finish a step; asynchronous: plan one, finish the one before.
void RandomWorkload::step() {
  if (!without_grammar_.empty() && pick(0, 2) == 0) {
    const RequestId id = *without_grammar_.begin();
    without_grammar_.erase(id);
    is_blocked_ = false;
    if (pick(0, 4) == 0)
      scheduler_->set_grammar(id, invalid_argument("no such grammar"));
    else
      scheduler_->set_grammar(id, exact_grammar(RandomGrammar()));
  }
  bool may_wait = false;
  if (scheduler_->has_requests()) {
    const bool defer_prefills = pick(0, 4) == 0;
    open_.push_back(run_now(scheduler_->schedule(0, defer_prefills)));
    const SchedulerOutput& planned = open_.back();
    BOOST_TEST(planned.total_num_scheduled_tokens <= config_.max_num_batched_tokens);
    BOOST_TEST(planned.scheduled_ids.size() <= static_cast<std::size_t>(config_.max_num_seqs));
    for (const std::int32_t n : planned.num_scheduled_tokens) BOOST_TEST(n > 0);
    for (const auto& [source, destination] : planned.block_copies)
      BOOST_TEST((source != kNullBlock && destination != kNullBlock && source != destination));
    coverage_.copies += planned.block_copies.size();
    coverage_.preemptions += planned.preempted_ids.size();
    for (const NewRequestData& data : planned.new_requests)
      coverage_.hits += data.num_computed_tokens > 0;
    if (is_blocked_) BOOST_TEST(planned.scheduled_ids.empty());
    may_wait = planned.scheduled_ids.empty() && planned.preempted_ids.empty() && !defer_prefills &&
               !planned.encode_ahead;
  }
  const std::size_t depth = config_.async_scheduling && scheduler_->has_requests() ? 1 : 0;
  while (open_.size() > depth) finish_step();
  // (A KV connector may have news at any time.)
  if (may_wait && open_.empty() && !connector_) is_blocked_ = scheduler_->is_blocked();
  coverage_.waits += is_blocked_;
}

void RandomWorkload::fail_open_steps() {
  const std::vector<SchedulerOutput> steps(open_.begin(), open_.end());
  open_.clear();
  if (pick(0, 1) == 1) ahead_.reset();
  const bool ok = run_now(scheduler_->recover_from_failed_steps(steps, 0));
  if (!connector_) BOOST_TEST(ok);  // else blocks may wait for its transfers
  BOOST_TEST(scheduler_->running().empty());
}

void RandomWorkload::finish_step() {
  const SchedulerOutput planned = std::move(open_.front());
  open_.pop_front();
  ModelRunnerOutput result;
  result.ids = planned.scheduled_ids;
  std::map<RequestId, std::int32_t> computed;
  std::map<RequestId, std::size_t> known;  // tokens, those under way included
  for (const NewRequestData& data : planned.new_requests)
    computed[data.id] = data.num_computed_tokens, known[data.id] = data.token_ids.size(),
    num_prompt_tokens_[data.id] = data.num_prompt_tokens;
  const CachedRequestData& cached = planned.cached_requests;
  for (std::size_t i = 0; i < cached.ids.size(); ++i) {
    computed[cached.ids[i]] = cached.num_computed_tokens[i];
    known[cached.ids[i]] =
        static_cast<std::size_t>(num_prompt_tokens_[cached.ids[i]] + cached.num_output_tokens[i]);
  }
  if (images_.capacity > 0) {
    encode_images(planned, computed);
    result.ec_connector.encoded_ahead = encode_ahead(planned);
  }
  std::vector<std::pair<RequestId, std::vector<TokenId>>> drafts;
  for (std::size_t i = 0; i < result.ids.size(); ++i) {
    const RequestId id = result.ids[i];
    const bool samples =
        static_cast<std::size_t>(computed[id] + planned.num_scheduled_tokens[i]) >= known[id];
    const int num_drafts = planned.num_draft_tokens.empty() ? 0 : planned.num_draft_tokens[i];
    const int num_sampled = samples ? 1 + pick(0, num_drafts) : 0;
    result.num_sampled.push_back(num_sampled);
    for (int n = 0; n < num_sampled; ++n) result.sampled_token_ids.push_back(pick(2, 50));
    if (samples && config_.speculative.num_draft_tokens > 0)
      drafts.emplace_back(
          id, std::vector<TokenId>(
                  static_cast<std::size_t>(pick(0, config_.speculative.num_draft_tokens)), 9));
  }
  if (connector_) result.kv_connector = connector_->report();
  if (auto structured = scheduler_->grammar_step(planned)) {
    const GrammarOutput masks = fill_masks(*std::move(structured)).output;
    BOOST_TEST(masks.ids.size() == masks.num_rows.size());
    BOOST_TEST(planned.has_structured_output_requests);
  }
  const EngineCoreOutputs outputs = run_now(scheduler_->update_from_output(planned, result, 0));
  for (const EngineCoreOutput& output : outputs.outputs) {
    BOOST_TEST(alive_.contains(output.id));
    if (output.finish_reason) alive_.erase(output.id);
  }
  if (!config_.async_scheduling) scheduler_->update_draft_token_ids(drafts);
}

void RandomWorkload::check_blocks() {
  for (const KVCacheEvent& event : manager_->take_events())
    coverage_.evictions += std::holds_alternative<BlockRemoved>(event);
  const BlockPool& pool = manager_->pool();
  std::vector<int> owners(static_cast<std::size_t>(pool.num_blocks()));
  for (const auto& [id, request] : manager_->requests())
    for (const GroupBlocks& group : request->groups)
      for (const BlockId block : group.blocks) ++owners[static_cast<std::size_t>(block)];
  for (const std::vector<BlockId>& blocks : manager_->deferred_frees())
    for (const BlockId block : blocks) ++owners[static_cast<std::size_t>(block)];
  std::vector<bool> free(owners.size());
  for (const BlockId block : pool.free_queue()) {
    BOOST_REQUIRE(block != kNullBlock);
    BOOST_REQUIRE(!free[static_cast<std::size_t>(block)]);
    free[static_cast<std::size_t>(block)] = true;
  }
  int num_used = 0;
  for (BlockId block = 1; block < pool.num_blocks(); ++block) {
    const int num_owners = owners[static_cast<std::size_t>(block)];
    if (pool.num_references(block) != num_owners ||
        free[static_cast<std::size_t>(block)] != (num_owners == 0))
      BOOST_FAIL("block " << block << " has " << pool.num_references(block) << " references and "
                          << num_owners << " owners");
    num_used += num_owners > 0;
  }
  BOOST_REQUIRE(num_used + pool.num_free_blocks() == pool.num_blocks() - 1);
}

}  // namespace troupe
