#include "tools/batch/batch_request.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/base/json_depth.hpp"
#include "runtime/base/ordered_json.hpp"
#include "runtime/http/openai_response.hpp"

namespace troupe::tools {
namespace {

using Json = nlohmann::ordered_json;

/// Every position with its token first, then the top ones; null without log-probabilities.
Json logprobs_json(const std::vector<PositionLogprobs>& positions) {
  Json list = Json::array();
  for (const PositionLogprobs& position : positions) {
    Json entries = position.empty() ? Json() : Json::array();
    for (const Logprob& entry : position) {
      entries.push_back({{"token_id", entry.token_id},
                         {"token", entry.token},
                         {"logprob", entry.logprob},
                         {"rank", entry.rank}});
    }
    list.push_back(std::move(entries));
  }
  return list;
}

Json stop_reason_json(const StopReason& reason) {
  if (const auto* id = std::get_if<TokenId>(&reason)) return *id;
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  return nullptr;
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Result<BatchRequest> BatchRequest::parse(std::string_view body, const ServerDefaults& defaults) {
  BatchRequest request;
  const Json json = parse_bounded_json<Json>(body);
  if (json.is_object() && json.contains("messages")) {
    ASSIGN_OR_RETURN(ChatRequest chat, parse_chat_request(body, defaults));
    request.prompts_.push_back(std::move(chat.prompt));
    request.echo_text_ = std::move(chat.echo_text);
    request.fields_ = std::move(chat);
  } else {
    ASSIGN_OR_RETURN(CompletionRequest completion, parse_completion_request(body, defaults));
    request.prompts_ = std::move(completion.prompts);
    request.echo_prompt_ = completion.echo;
    request.echo_only_ = completion.echo_only;
    request.fields_ = std::move(completion);
  }
  request.num_missing_ = request.prompts_.size();
  request.outputs_.resize(request.prompts_.size());
  return request;
}

std::vector<GenerateRequest> BatchRequest::take_requests() {
  std::vector<GenerateRequest> requests;
  for (Prompt& prompt : prompts_) {
    GenerateRequest request;
    request.external_id = fields_.request_id;
    request.prompt = std::move(prompt);
    request.params = fields_.params;
    request.params.output_kind = OutputKind::kFinalOnly;
    request.truncate_prompt_tokens = fields_.truncate_prompt_tokens;
    request.cache_salt = fields_.cache_salt;
    request.priority = fields_.priority;
    request.limits = fields_.limits;
    request.return_prompt_text = echo_prompt_;
    request.lora = fields_.lora;
    request.cache_breakpoints = fields_.cache_breakpoints;
    requests.push_back(std::move(request));
  }
  prompts_.clear();
  return requests;
}

void BatchRequest::add(std::size_t index, RequestOutput output) {
  CHECK(index < outputs_.size() && num_missing_ > 0, index, outputs_.size(), num_missing_);
  --num_missing_;
  const bool broken = std::any_of(
      output.outputs.begin(), output.outputs.end(),
      [](const CompletionOutput& sample) { return sample.finish_reason == FinishReason::kError; });
  if (output.error) {
    error_ = std::move(output.error);
  } else if (broken) {
    error_ = Error{ErrorCode::kInternal, "the engine failed during generation", ""};
  }
  outputs_[index] = std::move(output);
}

std::string BatchRequest::answer_json(std::size_t line_index) const {
  CHECK(done(), line_index);
  if (error_) return batch_error_json(line_index, *error_);
  Json choices = Json::array(), prompt_token_ids = Json::array(), prompt_logprobs = Json::array();
  std::size_t num_prompt_tokens = 0, num_output_tokens = 0, num_cached_tokens = 0;
  for (std::size_t prompt = 0; prompt < outputs_.size(); ++prompt) {
    const RequestOutput& output = outputs_[prompt];
    std::vector<CompletionOutput> samples = output.outputs;
    std::sort(samples.begin(), samples.end(),
              [](const auto& a, const auto& b) { return a.index < b.index; });
    for (const CompletionOutput& sample : samples) {
      num_output_tokens += sample.token_ids.size();
      const std::string generated = echo_only_ ? "" : sample.text;
      Json choice = {
          {"index", static_cast<std::int32_t>(prompt) * fields_.params.n + sample.index},
          {"text", echo_text_ + output.prompt_text + generated},
          {"token_ids", echo_only_ ? std::vector<TokenId>{} : sample.token_ids},
          {"finish_reason", sample.finish_reason ? Json(to_string(*sample.finish_reason)) : Json()},
          {"stop_reason", stop_reason_json(sample.stop_reason)}};
      if (fields_.params.logprobs && !echo_only_)
        choice["logprobs"] = logprobs_json(sample.logprobs);
      choices.push_back(std::move(choice));
    }
    num_prompt_tokens += output.prompt_token_ids.size();
    num_cached_tokens += static_cast<std::size_t>(output.num_cached_tokens);
    prompt_token_ids.push_back(output.prompt_token_ids);
    prompt_logprobs.push_back(logprobs_json(output.prompt_logprobs));
  }
  const bool single = outputs_.size() == 1;
  Json answer = {{"index", line_index}, {"choices", std::move(choices)}};
  answer["prompt_token_ids"] = single ? prompt_token_ids[0] : prompt_token_ids;
  if (fields_.params.prompt_logprobs) {
    answer["prompt_logprobs"] = single ? prompt_logprobs[0] : prompt_logprobs;
  }
  answer["usage"] = {{"prompt_tokens", num_prompt_tokens},
                     {"completion_tokens", num_output_tokens},
                     {"total_tokens", num_prompt_tokens + num_output_tokens},
                     {"cached_tokens", num_cached_tokens}};
  return dump(answer);
}

std::string batch_error_json(std::size_t line_index, const Error& error) {
  return "{\"index\":" + std::to_string(line_index) + "," + error_json(error).substr(1);
}

}  // namespace troupe::tools
