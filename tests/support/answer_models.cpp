// answer_models < cases.jsonl > results.jsonl: for each line
//   {"model", "prompts", "num_outputs", "dtype", "isa", "lora", "items"}
// what the model folder or GGUF file says to each prompt, greedily:
//   {"tokens": [[id]], "prompt_logprobs": [[[number]]], "logprobs": [[[number]]]}
// with the log-probabilities of the whole vocabulary behind each token but the last; of a pooling
// model {"embeddings": [[number]]}; or {"error"}. "dtype" (float32), "isa", "lora" (a folder) and
// "items" (per prompt a list of {"modality", "offset", "length", "shape", "values"}) may be left
// out. The prompts are answered in one batch, then in chunks with preemptions, which must say the
// same.

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "messages/encoder_input.hpp"
#include "runtime/base/json.hpp"
#include "tests/support/replay_models_driver.hpp"

namespace {

using Json = nlohmann::json;

constexpr const char* kAdapter = "adapter";
constexpr std::int32_t kMaxRank = 64;

/// By token id: as many numbers as the vocabulary has tokens, row by row.
Json full_rows(const troupe::LogprobRows& rows, std::int32_t vocab_size) {
  Json full = Json::array();
  std::size_t entry = 0;
  for (const std::int32_t size : rows.row_sizes) {
    std::vector<float> row(static_cast<std::size_t>(vocab_size));
    for (std::int32_t i = 0; i < size; ++i, ++entry)
      row[static_cast<std::size_t>(rows.token_ids[entry])] = rows.logprobs[entry];
    full.push_back(std::move(row));
  }
  return full;
}

std::vector<troupe::MultiModalFeature> items_of(const Json& given) {
  std::vector<troupe::MultiModalFeature> items;
  for (const Json& each : given) {
    const auto shape = each.at("shape").get<std::vector<std::int64_t>>();
    const auto values = each.at("values").get<std::vector<float>>();
    items.push_back({.modality = each.at("modality"),
                     .identifier = std::to_string(std::hash<std::string>{}(each.dump())),
                     .offset = each.at("offset"),
                     .length = each.at("length"),
                     .is_embed = {},
                     .data = troupe::pack_encoder_input(shape, values)});
  }
  return items;
}

/// One prompt after the other, each in a step of its own.
Json embeddings_of(troupe::DrivenRunner& driven, const Json& prompts) {
  Json embeddings = Json::array();
  std::uint64_t number = 0;
  for (const Json& prompt : prompts) {
    troupe::SchedulerOutput step;
    step.step = ++number;
    if (number > 1) step.finished_ids = {troupe::RequestId{number - 1}};
    troupe::NewRequestData& request = step.new_requests.emplace_back();
    request.id = troupe::RequestId{number};
    request.token_ids = prompt.get<std::vector<troupe::TokenId>>();
    const auto num_tokens = static_cast<std::int32_t>(request.token_ids.size());
    request.num_prompt_tokens = num_tokens;
    for (const troupe::KVCacheGroup& group : driven.cache.groups) {
      std::vector<troupe::BlockId>& blocks = request.block_ids.emplace_back();
      while (std::ssize(blocks) * group.spec.block_size < num_tokens)
        blocks.push_back(static_cast<troupe::BlockId>(blocks.size() + 1));
    }
    step.scheduled_ids = {request.id};
    step.num_scheduled_tokens = {num_tokens};
    step.total_num_scheduled_tokens = num_tokens;
    const auto done = driven.runner->execute(step);
    if (!done.ok()) throw std::runtime_error(done.error().message);
    if (!done->request_errors.empty())
      throw std::runtime_error(done->request_errors.front().second.message);
    embeddings.push_back(done->pooling_outputs.front().second);
  }
  return {{"embeddings", embeddings}};
}

Json answer_of(const Json& given) {
  troupe::DriverModelOptions options{.folder = given.at("model"),
                                     .dtype = given.value("dtype", "float32"),
                                     .isa = given.value("isa", "auto")};
  options.threads = 1;
  options.num_blocks = 512;
  if (given.contains("lora"))
    options.adapters = {.enabled = true,
                        .max_rank = kMaxRank,
                        .modules = {{.name = kAdapter, .path = given["lora"]}}};
  troupe::DrivenRunner driven = troupe::load_driven_runner(options);
  const Json& prompts = given.at("prompts");
  if (driven.runner->describe().pooler.type != troupe::PoolingType::kNone)
    return embeddings_of(driven, prompts);
  const std::int32_t vocab_size = driven.runner->describe().vocab_size;
  const std::int32_t max_model_len = driven.runner->describe().max_model_len;
  std::vector<troupe::DriverJob> jobs;
  for (const Json& prompt : prompts) {
    // What an engine rejects.
    if (std::ssize(prompt) + given.at("num_outputs").get<std::int32_t>() > max_model_len)
      throw std::runtime_error("a prompt of " + std::to_string(prompt.size()) +
                               " tokens is too long: max_model_len is " +
                               std::to_string(max_model_len));
    troupe::DriverJob job{
        .prompt = prompt, .params = {}, .num_outputs = given.at("num_outputs"), .items = {}};
    job.params.temperature = 0;
    job.params.ignore_eos = true;
    job.params.logprobs = job.params.prompt_logprobs = troupe::kAllLogprobs;
    if (given.contains("items")) job.items = items_of(given["items"].at(jobs.size()));
    if (given.contains("lora")) job.lora = driven.runner->adapters()->list().at(0);
    jobs.push_back(std::move(job));
  }
  const std::vector<troupe::DriverResult> results = troupe::drive(driven, jobs, {});
  Json answer = {
      {"tokens", Json::array()}, {"logprobs", Json::array()}, {"prompt_logprobs", Json::array()}};
  for (const troupe::DriverResult& result : results) {
    if (!result.errors.empty()) return {{"error", result.errors.front().message}};
    answer["tokens"].push_back(result.tokens);
    answer["logprobs"].push_back(full_rows(result.logprobs, vocab_size));
    answer["prompt_logprobs"].push_back(full_rows(result.prompt_logprobs, vocab_size));
  }
  std::size_t longest = 0;
  for (const troupe::DriverJob& job : jobs) longest = std::max(longest, job.prompt.size());
  // A prompt has to be done before its turn to be preempted comes again.
  const auto small_budget = std::max(19, static_cast<std::int32_t>(longest / 2));
  if (!given.contains("items") &&
      troupe::drive(driven, jobs, {.token_budget = small_budget, .preempt_every = 5}) != results)
    answer["error"] = "in chunks with preemptions it is another answer";
  return answer;
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    Json answer;
    try {
      answer = answer_of(Json::parse(line));
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump() << std::endl;  // the reader waits for it
  }
  return 0;
}
