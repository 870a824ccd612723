#include "runtime/http/generation.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "runtime/base/memory.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/kept_streams.hpp"

namespace troupe {
namespace {

template <class T>
void append(std::vector<T>& into, std::vector<T>&& from) {
  if (into.empty()) {
    into = std::move(from);
  } else {
    into.insert(into.end(), std::make_move_iterator(from.begin()),
                std::make_move_iterator(from.end()));
  }
}

/// Approximate size of an output that is buffered for the client.
std::int64_t num_bytes(const CompletionOutput& output) {
  constexpr std::size_t kLogprobBytes = 64;  // with its token
  std::size_t size = output.text.size() + output.token_ids.size() * sizeof(TokenId) +
                     output.embedding.size() * sizeof(float);
  for (const PositionLogprobs& position : output.logprobs) size += position.size() * kLogprobBytes;
  return static_cast<std::int64_t>(size);
}

/// Merges later outputs of a request into earlier ones that have not been sent.
void merge_all(std::vector<CompletionOutput>& into, std::vector<CompletionOutput>&& from) {
  for (CompletionOutput& output : from) {
    const auto same = std::find_if(into.begin(), into.end(), [&](const CompletionOutput& known) {
      return known.index == output.index;
    });
    if (same == into.end()) {
      into.push_back(std::move(output));
    } else {
      merge(*same, std::move(output));
    }
  }
}

}  // namespace

void merge(CompletionOutput& into, CompletionOutput&& from) {
  into.text += from.text;
  append(into.token_ids, std::move(from.token_ids));
  append(into.logprobs, std::move(from.logprobs));
  into.cumulative_logprob = from.cumulative_logprob;
  into.finish_reason = from.finish_reason;
  into.stop_reason = std::move(from.stop_reason);
  if (!from.embedding.empty()) into.embedding = std::move(from.embedding);
}

Generation::Generation(ServiceContext& context, ResponseSink& sink, const GenerationFields& fields,
                       std::string id, ChoiceFormat format)
    : context_(context),
      count_(context),
      sink_(sink),
      dialect_(*fields.dialect),
      head_{
          .id = std::move(id),
          .created = static_cast<std::int64_t>(fields.resumable ? fields.resumable->arrival_time
                                                                : context.environment.wall_clock()),
          .model = fields.model},
      format_(format),
      stream_(fields.stream),
      stream_options_{dialect_.has_usage_event && (fields.stream_options.include_usage ||
                                                   context.config.enable_force_include_usage),
                      fields.stream_options.continuous_usage_stats},
      max_tokens_(fields.params.max_tokens),
      num_samples_(fields.params.n),
      arrival_(context.environment.steady_clock()),
      body_bytes_(fields.body_bytes),
      key_use_(fields.key_use),
      resumable_(fields.resumable) {
  if (resumable_) shown_.samples.resize(resumable_->after.samples.size());
  advanced_.resize(shown_.samples.size());
}

void Generation::note_completion() {
  head_.completed = static_cast<std::int64_t>(context_.environment.wall_clock());
}

Generation::~Generation() {
  constexpr std::size_t kSampleBytes = 8 << 10;  // in this object, in the engine and between them
  constexpr std::size_t kBodyFactor = 8;         // for its parsed, rendered and tokenized forms
  abandon();
  note_freed_memory(kBodyFactor * body_bytes_ +
                    kSampleBytes * parts_.size() * static_cast<std::size_t>(num_samples_) +
                    static_cast<std::size_t>(num_answer_bytes_));
  if (resumable_ && resumable_->is_kept) {
    context_.counters.kept_streams->release(resumable_->id, context_.environment.wall_clock());
  }
}

void Generation::submit(std::vector<Prompt> prompts, const std::vector<std::string>& external_ids,
                        const GenerationFields& fields, bool return_prompt_text) {
  const std::size_t first = parts_.size();
  parts_.resize(first + prompts.size());
  num_live_ += prompts.size();
  for (std::size_t i = first; i < parts_.size(); ++i) {
    parts_[i].id = context_.port.allocate_ids(num_samples_);
    parts_[i].index = static_cast<std::int32_t>(i);
    parts_[i].samples.resize(static_cast<std::size_t>(num_samples_));
    context_.live.emplace(parts_[i].id, this);
  }
  const double arrival_time =
      fields.resumable ? fields.resumable->arrival_time : context_.environment.wall_clock();
  for (std::size_t i = first; i < parts_.size(); ++i) {
    GenerateRequest request;
    request.id = parts_[i].id;
    request.external_id = external_ids[i - first];
    request.prompt = std::move(prompts[i - first]);
    request.params = fields.params;
    if (!stream_) {
      // As deltas: output is not lost with an engine, and an oversized response is detected early.
      request.params.output_kind = OutputKind::kDelta;
      request.params.stream_interval = answer_interval();
    }
    request.params.philox_key =
        fields.resumable ? fields.resumable->philox_keys[i] : context_.port.draw_key();
    request.pooling = fields.pooling;
    request.truncate_prompt_tokens = fields.truncate_prompt_tokens;
    request.cache_salt = fields.cache_salt;
    request.lora = fields.lora;
    request.cache_breakpoints = fields.cache_breakpoints;
    request.priority = fields.priority;
    request.limits = fields.limits;
    request.tenant = fields.tenant;
    request.client = fields.client;
    request.arrival_time = arrival_time;
    request.return_prompt_text = return_prompt_text;
    context_.port.submit({std::move(request), fields.placement});
  }
}

void Generation::deliver(RequestOutput output, std::uint32_t engine) {
  const auto part = std::find_if(parts_.begin(), parts_.end(),
                                 [&](const Part& known) { return known.id == output.id; });
  CHECK(part != parts_.end() && !part->finished, value(output.id));
  observe(*part, output, engine);
  if (output.error) {
    retire(*part);
    return fail(*std::move(output.error));
  }
  const bool broken = std::any_of(output.outputs.begin(), output.outputs.end(), [](const auto& o) {
    return o.finish_reason == FinishReason::kError;
  });
  if (broken) {
    if (output.finished) retire(*part);
    return fail({ErrorCode::kInternal, "the engine failed during generation", ""});
  }
  if (!output.kv_transfer_params.empty())
    kv_transfer_params_ = std::move(output.kv_transfer_params);
  if (!output.ec_transfer_params.empty())
    ec_transfer_params_ = std::move(output.ec_transfer_params);
  std::int64_t num_tokens = 0;
  if (!part->begun) {
    take_first(*part, output);
    num_tokens = part->num_prompt_tokens;
  }
  for (const CompletionOutput& completion : output.outputs) {
    const auto size = static_cast<std::int64_t>(completion.token_ids.size());
    sample(*part, completion).num_tokens += size;
    take_output(completion);
    num_tokens += size;
    num_pending_bytes_ += num_bytes(completion);
    num_answer_bytes_ += num_bytes(completion);
  }
  if (key_use_) key_use_->spend_tokens(num_tokens);
  const std::int64_t limit = context_.config.defaults.size.max_answer_bytes;
  if (num_pending_bytes_ > limit) {
    if (output.finished) retire(*part);
    return fail(
        invalid_argument("the response has more than " + std::to_string(limit) +
                             " bytes that the client has not read (max_answer_bytes): request "
                             "fewer samples, tokens or log-probabilities",
                         stream_ ? "" : "n"));
  }
  merge_all(part->pending.outputs, std::move(output.outputs));
  part->has_pending = true;
  if (output.finished) retire(*part);
  if (num_live_ == 0) go_on();
  if (stream_) {
    flush();
  } else if (num_live_ == 0) {
    done_ = true;
    std::string body = final_json();
    sink_.respond(
        {.status = 200, .content_type = std::string(final_type()), .body = std::move(body)});
  }
}

void Generation::observe(Part& part, const RequestOutput& output, std::uint32_t engine) {
  const double since_arrival = context_.environment.steady_clock() - arrival_;
  EngineMetrics& metrics = context_.metrics;
  if (output.prefill_stats) metrics.observe_prefill(engine, *output.prefill_stats);
  if (stream_ && !part.begun && !output.error) {
    metrics.observe_first_token(engine, since_arrival);
    if (!times_.first_token_s) times_.first_token_s = since_arrival;
  }
  std::vector<FinishReason> reasons;
  for (const CompletionOutput& completion : output.outputs) {
    if (completion.finish_reason) reasons.push_back(*completion.finish_reason);
  }
  std::int32_t longest = 0;
  for (std::size_t i = 0; i < output.finished_times.size(); ++i) {
    const RequestTimes& times = output.finished_times[i];
    longest = std::max(longest, times.num_generation_tokens);
    // Without streaming the first output is the last: the engine's clock has the time of the first
    // token.
    if (!stream_ && times.first_token > 0 && times.num_earlier_tokens == 0) {
      metrics.observe_first_token(engine, times.first_token - times.queued);
      if (!times_.first_token_s) times_.first_token_s = times.first_token - times.queued;
    }
    if (!times_.queue_s && times.scheduled > 0) times_.queue_s = times.scheduled - times.queued;
    const auto num_prompt_tokens = part.begun
                                       ? part.num_prompt_tokens
                                       : static_cast<std::int32_t>(output.prompt_token_ids.size());
    metrics.observe_finished(
        engine,
        {.reason = i < reasons.size() ? reasons[i] : FinishReason::kAbort,
         .times = times,
         .e2e_seconds = since_arrival,
         .num_prompt_tokens = num_prompt_tokens,
         .num_cached_tokens = part.begun ? part.num_cached_tokens : output.num_cached_tokens,
         .max_tokens = max_tokens_});
  }
  for (const Sample& sample : part.samples) {
    longest = std::max(longest, static_cast<std::int32_t>(sample.num_tokens));
  }
  if (output.finished) metrics.observe_request(engine, num_samples_, longest);
}

void Generation::take_first(Part& part, RequestOutput& output) {
  part.begun = true;
  part.num_prompt_tokens = static_cast<std::int32_t>(output.prompt_token_ids.size());
  part.num_cached_tokens = output.num_cached_tokens;
  if (output.prefill_stats) {
    part.num_prompt_tokens =
        std::max(part.num_prompt_tokens, output.prefill_stats->num_prompt_tokens);
    part.num_cache_creation_tokens = output.prefill_stats->num_cache_creation_tokens;
    part.num_host_cached_tokens = output.prefill_stats->num_host_cached_tokens;
    part.num_disk_cached_tokens = output.prefill_stats->num_disk_cached_tokens;
    part.num_peer_cached_tokens = output.prefill_stats->num_peer_cached_tokens;
    // What is external and not cached.
    part.num_blended_tokens = std::max(0, output.prefill_stats->num_external_cached_tokens -
                                              (output.prefill_stats->num_cached_tokens -
                                               output.prefill_stats->num_local_cached_tokens));
    part.num_remote_cached_tokens = output.prefill_stats->num_remote_cached_tokens;
  }
  part.prompt_token_ids = std::move(output.prompt_token_ids);
  part.prompt_text = std::move(output.prompt_text);
  part.prompt_logprobs = std::move(output.prompt_logprobs);
  part.first_token_text = std::move(output.first_token_text);
}

void Generation::retire(Part& part) {
  part.finished = true;
  --num_live_;
  context_.live.erase(part.id);
  context_.counters.num_samples -= num_samples_;
  context_.counters.completions.observe(num_samples_, context_.environment.steady_clock());
}

void Generation::abandon() {
  std::vector<RequestId> ids;
  for (Part& part : parts_) {
    if (part.finished) continue;
    ids.push_back(part.id);
    retire(part);
  }
  if (!ids.empty()) context_.port.abort(std::move(ids));
}

void Generation::fail(Error error) {
  abandon();
  error_ = std::move(error);
  if (begun_) return flush();
  done_ = true;
  // The client does not read, so flush what is buffered first.
  ServiceCounters& counters = context_.counters;
  sink_.respond(
      error_response(*error_,
                     counters.completions.retry_after_s(counters.num_samples.load(),
                                                        context_.environment.steady_clock()),
                     dialect_));
}

void Generation::begin() {
  if (begun_) return;
  begun_ = true;
  sink_.begin({.status = 200,
               .content_type = std::string(dialect_.stream_type),
               .headers = {{"Cache-Control", "no-cache"}}});
}

void Generation::flush() {
  if (done_ || !sink_.ready()) return;
  events_.clear();
  for (Part& part : parts_) {
    if (!part.has_pending) continue;
    append_events(events_, part);
    part.has_pending = false;
    part.pending = {};
  }
  num_pending_bytes_ = 0;
  const bool complete = num_live_ == 0;
  if (error_) {
    append_error(events_, *error_);
  } else if (complete) {
    append_end(events_);
  }
  if (complete) events_ += dialect_.stream_end;
  if (events_.empty()) {
    if (resumable_ && !begun_)
      on_silence();  // the client has all output so far, and the next may take a while
    return;
  }
  begin();
  done_ = complete;
  if (resumable_) sink_.note_position(to_text(shown_));
  sink_.write(events_, complete);
}

void Generation::append_error(std::string& out, const Error& error) {
  dialect_.append_error_event(out, error);
}

void Generation::append_end(std::string& out) {
  if (!stream_options_.include_usage) return;
  if (resumable_) {
    if (resumable_->after.has_usage) return;
    shown_.has_usage = true;
    append_event_id(out, to_text(shown_));
  }
  append_usage_event(out, head_, stream_object(), usage());
}

std::size_t Generation::sample_of(const Part& part, std::int32_t index) const {
  const std::int32_t sample = part.index * num_samples_ + index;
  return static_cast<std::size_t>(sample);
}

void Generation::advance(const Part& part, std::int32_t index, const SamplePosition& addition) {
  if (!resumable_) return;
  SamplePosition& position = advanced_[sample_of(part, index)];
  position.begun = true;
  position.num_tokens += addition.num_tokens;
  position.num_bytes += addition.num_bytes;
  position.finished |= addition.finished;
}

bool Generation::begin_event(std::string& out, const Part& part, std::int32_t index,
                             const SamplePosition& addition) {
  if (!resumable_) return true;
  advance(part, index, addition);
  const std::size_t sample = sample_of(part, index);
  const SamplePosition& position = shown_.samples[sample] = advanced_[sample];
  if (position.is_within(resumable_->after.samples[sample])) return false;
  if (dialect_.has_event_ids) append_event_id(out, to_text(shown_));
  return true;
}

/// Removes the part of the output that the client already has.
std::optional<CompletionOutput> Generation::split_known(const Part& part,
                                                        CompletionOutput& output) {
  if (!resumable_) return std::nullopt;
  const std::size_t sample = sample_of(part, output.index);
  const SamplePosition& before = advanced_[sample];
  const SamplePosition& known = resumable_->after.samples[sample];
  const auto num_known = [](std::size_t has, std::size_t shown, std::size_t size) {
    return std::min(has > shown ? has - shown : 0, size);
  };
  const std::size_t num_tokens =
      num_known(known.num_tokens, before.num_tokens, output.token_ids.size());
  std::size_t num_bytes = num_known(known.num_bytes, before.num_bytes, output.text.size());
  while (num_bytes < output.text.size() && (output.text[num_bytes] & 0xC0) == 0x80) ++num_bytes;
  if (num_tokens == 0 && num_bytes == 0 && (before.begun || !known.begun)) return std::nullopt;
  if (num_tokens == output.token_ids.size() && num_bytes == output.text.size() &&
      (known.finished || !output.finish_reason))
    return std::nullopt;
  CompletionOutput beginning;
  beginning.index = output.index;
  beginning.cumulative_logprob = output.cumulative_logprob;
  beginning.text = output.text.substr(0, num_bytes);
  output.text.erase(0, num_bytes);
  const auto move_front = [](auto& from, auto& to, std::size_t count) {
    const auto end = from.begin() + static_cast<std::ptrdiff_t>(std::min(count, from.size()));
    to.assign(std::make_move_iterator(from.begin()), std::make_move_iterator(end));
    from.erase(from.begin(), end);
  };
  move_front(output.token_ids, beginning.token_ids, num_tokens);
  move_front(output.logprobs, beginning.logprobs, num_tokens);
  return beginning;
}

void Generation::on_ready() {
  if (stream_) flush();
}

void Generation::on_silence() {
  if (!stream_ || done_ || !sink_.ready() || dialect_.keep_alive.empty()) return;
  begin();
  sink_.write(dialect_.keep_alive, false);
}

Generation::Sample& Generation::sample(Part& part, const CompletionOutput& output) const {
  CHECK(output.index >= 0 && output.index < num_samples_, output.index, num_samples_);
  return part.samples[static_cast<std::size_t>(output.index)];
}

Usage Generation::usage() const {
  Usage usage{.show_details = context_.config.enable_prompt_tokens_details,
              .num_reasoning_tokens = num_reasoning_tokens()};
  for (const Part& part : parts_) {
    usage.num_prompt_tokens += part.num_prompt_tokens;
    usage.num_cached_tokens += part.num_cached_tokens;
    usage.num_cache_creation_tokens += part.num_cache_creation_tokens;
    usage.num_host_cached_tokens += part.num_host_cached_tokens;
    usage.num_disk_cached_tokens += part.num_disk_cached_tokens;
    usage.num_peer_cached_tokens += part.num_peer_cached_tokens;
    usage.num_blended_tokens += part.num_blended_tokens;
    usage.num_remote_cached_tokens += part.num_remote_cached_tokens;
    for (const Sample& sample : part.samples) usage.num_completion_tokens += sample.num_tokens;
  }
  return usage;
}

WorkDone Generation::work_done() const {
  const Usage used = usage();
  WorkDone work = times_;
  work.id = head_.id;
  work.num_prompt_tokens = used.num_prompt_tokens;
  work.num_output_tokens = used.num_completion_tokens;
  return work;
}

std::optional<Usage> Generation::continuous_usage(const Part& part, const Sample& sample) const {
  if (!stream_options_.continuous_usage_stats) return std::nullopt;
  return Usage{.num_prompt_tokens = part.num_prompt_tokens,
               .num_completion_tokens = sample.num_tokens};
}

}  // namespace troupe
