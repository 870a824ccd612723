#include "runtime/processors/output_sample.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe {

PositionLogprobs LogprobRowReader::next(TokenStrings& strings, std::span<const TokenId> context) {
  CHECK(!at_end());
  const auto size = static_cast<std::size_t>(rows_.row_sizes[row_++]);
  CHECK(entry_ + size <= rows_.token_ids.size(), entry_, size, rows_.token_ids.size());
  PositionLogprobs position;
  position.reserve(size);
  for (const std::size_t end = entry_ + size; entry_ < end; ++entry_) {
    const TokenId token = rows_.token_ids[entry_];
    position.push_back(
        {token, rows_.logprobs[entry_], rows_.ranks[entry_], strings.text(token, context)});
  }
  return position;
}

OutputSample::OutputSample(const OutputRequest& request, std::int32_t index,
                           const std::shared_ptr<const Tokenizer>& tokenizer)
    : request_(request),
      index_(index),
      detokenizer_(tokenizer, request.params, request.prompt_token_ids) {
  if (request.emitted.empty()) return;
  const EmittedSample& emitted = request.emitted[static_cast<std::size_t>(index)];
  const std::vector<TokenId>& tokens = emitted.token_ids;
  // As its client has already been told.
  if (emitted.finished) finish_reason_ = FinishReason::kStop;
  detokenizer_.skip(tokens);
  if (request.params.output_kind != OutputKind::kDelta) token_ids_ = tokens;
  if (request.params.logprobs) context_ = tokens;
  cumulative_logprob_ = emitted.cumulative_logprob;
  num_tokens_ = num_sent_tokens_ = tokens.size();
  times.num_generation_tokens = times.num_earlier_tokens = static_cast<std::int32_t>(num_tokens_);
  is_resumed = !tokens.empty();
}

RequestId OutputSample::id() const noexcept {
  return RequestId{value(request_.id) + static_cast<std::uint64_t>(index_)};
}

namespace {

/// As PoolingParams::activation says, in double precision.
std::vector<float> activated(std::vector<float> logits, ClassActivation activation) {
  if (activation == ClassActivation::kSigmoid) {
    for (float& value : logits)
      value = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(value))));
  } else if (activation == ClassActivation::kSoftmax) {
    const auto largest = static_cast<double>(*std::ranges::max_element(logits));
    double sum = 0;
    for (const float value : logits) sum += std::exp(static_cast<double>(value) - largest);
    for (float& value : logits)
      value = static_cast<float>(std::exp(static_cast<double>(value) - largest) / sum);
  }
  return logits;
}

/// In double precision, so that the length is 1 to the last bit of a float.
std::vector<float> finished_embedding(std::vector<float> pooled, const PoolingParams& params) {
  if (params.dimensions > 0 && std::cmp_less(params.dimensions, pooled.size()))
    pooled.resize(static_cast<std::size_t>(params.dimensions));
  if (!params.normalize) return pooled;
  double sum = 0;
  for (const float value : pooled) sum += static_cast<double>(value) * static_cast<double>(value);
  constexpr double kSmallestLength = 1e-12;
  const double length = std::max(std::sqrt(sum), kSmallestLength);
  for (float& value : pooled) value = static_cast<float>(static_cast<double>(value) / length);
  return pooled;
}

}  // namespace

bool OutputSample::add(EngineCoreOutput& output, TokenStrings& strings) {
  if (output.pooling_output && request_.pooling)
    embedding_ = request_.pooling->classifies
                     ? activated(*std::move(output.pooling_output), request_.pooling->activation)
                     : finished_embedding(*std::move(output.pooling_output), *request_.pooling);
  std::span<const TokenId> tokens = output.new_token_ids;
  const bool stopped_by_token = output.finish_reason == FinishReason::kStop;
  const auto stop = detokenizer_.update(tokens, stopped_by_token);
  finish_reason_ = output.finish_reason;
  stop_reason_ = output.stop_reason;
  if (stop) {
    tokens = tokens.first(stop->num_tokens);
    finish_reason_ = FinishReason::kStop;
    stop_reason_ = *stop->stop;
  }
  num_tokens_ += tokens.size();
  times.num_generation_tokens = static_cast<std::int32_t>(num_tokens_);
  if (request_.params.logprobs) add_logprobs(output.new_logprobs, tokens, strings);
  output.new_token_ids.resize(tokens.size());
  if (token_ids_.empty())
    token_ids_ = std::move(output.new_token_ids);
  else
    token_ids_.insert(token_ids_.end(), output.new_token_ids.begin(), output.new_token_ids.end());
  return stop.has_value() && !output.finish_reason.has_value();
}

void OutputSample::add_logprobs(const LogprobRows& rows, std::span<const TokenId> tokens,
                                TokenStrings& strings) {
  LogprobRowReader reader(rows);
  for (const TokenId token : tokens) {
    if (!reader.at_end()) {
      logprobs_.push_back(reader.next(strings, context_));
      cumulative_logprob_ += static_cast<double>(logprobs_.back().front().logprob);
    }
    if (context_.size() >= 2 * TokenStrings::kMaxContext) {
      context_.erase(context_.begin(),
                     context_.end() - static_cast<std::ptrdiff_t>(TokenStrings::kMaxContext));
    }
    context_.push_back(token);
  }
}

bool OutputSample::wants_output() const noexcept {
  if (finished()) return true;
  if (request_.params.output_kind == OutputKind::kFinalOnly || num_tokens_ == num_sent_tokens_) {
    return false;
  }
  return num_sent_tokens_ == 0 || num_tokens_ - num_sent_tokens_ >=
                                      static_cast<std::size_t>(request_.params.stream_interval);
}

CompletionOutput OutputSample::take_output() {
  CompletionOutput output;
  output.index = index_;
  if (request_.params.output_kind == OutputKind::kDelta) {
    output.text = detokenizer_.take_new_text(finished());
    output.token_ids = std::exchange(token_ids_, {});
    output.logprobs = std::exchange(logprobs_, {});
  } else {
    output.text = detokenizer_.text(finished());
    output.token_ids = token_ids_;
    output.logprobs = logprobs_;
  }
  output.embedding = std::exchange(embedding_, {});
  output.cumulative_logprob = cumulative_logprob_;
  output.finish_reason = finish_reason_;
  if (finished()) output.stop_reason = stop_reason_;
  num_sent_tokens_ = num_tokens_;
  return output;
}

}  // namespace troupe
