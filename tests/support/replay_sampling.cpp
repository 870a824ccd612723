// sampling.jsonl with sampling.safetensors, and bad_words.jsonl where the tokenizers that it names
// lie beside the folder (../tokenizers).

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <span>

#include "runtime/base/json.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/processors/sampling_params_check.hpp"
#include "runtime/worker/sampler.hpp"
#include "tests/support/replay.hpp"

namespace troupe {

namespace {

using nlohmann::json;

constexpr float kProbabilityTolerance = 1e-6f;
constexpr float kImpossible = 1e-37f;  // where float32 begins to lose small probabilities
constexpr double kLogitTolerance = 1e-5;
constexpr double kLogprobTolerance = 5e-6;  // the file rounds to six digits

/// Row `index` of the float32 matrix of that name.
std::span<const float> row_of(const SafetensorsFile& file, std::string_view name,
                              std::size_t index) {
  const TensorView* matrix = file.find(name);
  CHECK(matrix != nullptr && matrix->shape.size() == 2, name);
  const auto num_columns = static_cast<std::size_t>(matrix->shape[1]);
  return matrix->elements<float>().subspan(index * num_columns, num_columns);
}

std::vector<json> read_json_lines(const std::filesystem::path& path) {
  std::vector<json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) rows.push_back(json::parse(line));
  return rows;
}

SamplingParams params_of(const json& row) {
  SamplingParams params;
  params.temperature = row.at("temperature");
  params.top_k = row.at("top_k");
  params.top_p = row.at("top_p");
  params.min_p = row.at("min_p");
  params.repetition_penalty = row.at("repetition_penalty");
  params.presence_penalty = row.at("presence_penalty");
  params.frequency_penalty = row.at("frequency_penalty");
  params.min_tokens = row.at("min_tokens");
  params.all_stop_token_ids = row.at("stop_token_ids").get<std::vector<TokenId>>();
  params.bad_words_token_ids =
      row.at("bad_words_token_ids").get<std::vector<std::vector<TokenId>>>();
  if (!row.at("allowed_token_ids").is_null()) {
    params.allowed_token_ids = row.at("allowed_token_ids").get<std::vector<TokenId>>();
  }
  for (const auto& [token, bias] : row.at("logit_bias").items()) {
    params.logit_bias.edit().emplace_back(std::stoi(token), bias.get<float>());
  }
  return params;
}

bool near(float ours, float reference, double tolerance) {
  if (std::isinf(reference)) return ours == reference;
  const double scale = std::max(1.0, std::abs(static_cast<double>(reference)));
  return std::abs(static_cast<double>(ours) - static_cast<double>(reference)) <= tolerance * scale;
}

std::string compare_logits(std::span<const float> ours, std::span<const float> reference) {
  for (std::size_t i = 0; i < reference.size(); ++i) {
    if (near(ours[i], reference[i], kLogitTolerance)) continue;
    return "logit of token " + std::to_string(i) + " is " + std::to_string(ours[i]) +
           " after the penalties, expected " + std::to_string(reference[i]);
  }
  return {};
}

/// Which of several equal logits top_p drops depends on the reference's sort, which is not stable:
/// probabilities are compared in the order of the logits, equal ones by their probability.
std::string compare_probabilities(const SamplingDistribution& distribution,
                                  std::span<const float> logits, std::span<const float> reference) {
  std::vector<std::pair<float, float>> ours;
  std::vector<std::pair<float, float>> expected;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    ours.emplace_back(logits[i], 0.0f);
    expected.emplace_back(logits[i], reference[i]);
  }
  for (std::size_t i = 0; i < distribution.tokens().size(); ++i) {
    ours[static_cast<std::size_t>(distribution.tokens()[i])].second = static_cast<float>(
        static_cast<double>(distribution.weights()[i]) / distribution.total_weight());
  }
  std::sort(ours.begin(), ours.end());
  std::sort(expected.begin(), expected.end());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const float probability = ours[i].second;
    const float wanted = expected[i].second;
    if ((probability > kImpossible) == (wanted > kImpossible) &&
        std::abs(probability - wanted) <= kProbabilityTolerance) {
      continue;
    }
    return "probability of a token with logit " + std::to_string(ours[i].first) + " is " +
           std::to_string(probability) + ", expected " + std::to_string(wanted);
  }
  return {};
}

std::string compare_logprobs(const json& row, std::span<const float> logits, Sampler& sampler) {
  LogprobRows rows;
  const auto status = sampler.append_logprobs(logits, row.at("argmax_after_penalties"), 5, rows);
  if (!status.ok()) return status.error().message;
  if (rows.ranks[0] != row.at("raw_rank_of_argmax").get<std::int32_t>()) {
    return "rank is " + std::to_string(rows.ranks[0]) + ", expected " +
           row.at("raw_rank_of_argmax").dump();
  }
  for (std::size_t i = 0; i < 5; ++i) {
    // Equal logits may come in any order.
    const TokenId expected = row.at("raw_top5_ids")[i];
    const bool equal = logits[static_cast<std::size_t>(rows.token_ids[i + 1])] ==
                       logits[static_cast<std::size_t>(expected)];
    if (!equal || !near(rows.logprobs[i + 1], row.at("raw_top5_logprobs")[i], kLogprobTolerance)) {
      return "rank " + std::to_string(i + 1) + " is token " +
             std::to_string(rows.token_ids[i + 1]) + " with logprob " +
             std::to_string(rows.logprobs[i + 1]) + ", expected " + std::to_string(expected) +
             " with " + row.at("raw_top5_logprobs")[i].dump();
    }
  }
  return {};
}

std::string compare_row(const json& row, const SafetensorsFile& matrices, Sampler& sampler) {
  const std::size_t index = row.at("row");
  const std::span<const float> raw = row_of(matrices, "logits", index);
  const SamplingParams params = params_of(row.at("params"));
  auto tokens = row.at("prompt_token_ids").get<std::vector<TokenId>>();
  const std::size_t num_prompt_tokens = tokens.size();
  for (const TokenId token : row.at("output_token_ids")) tokens.push_back(token);
  const SamplingState state(params, tokens, num_prompt_tokens);

  std::vector<float> logits(raw.begin(), raw.end());
  state.process_logits(logits);
  if (auto text = compare_logits(logits, row_of(matrices, "after_penalties", index)); !text.empty())
    return text;
  if (params.greedy() != row.at("is_greedy").get<bool>()) return "greedy differs";
  if (params.greedy()) {
    LogprobRows rows;
    logits.assign(raw.begin(), raw.end());
    const Result<TokenId> sampled = sampler.sample(logits, state, rows);
    if (!sampled.ok()) return sampled.error().message;
    if (!row.at("argmax_is_tied").get<bool>() &&
        *sampled != row.at("argmax_after_penalties").get<TokenId>()) {
      return "greedy token is " + std::to_string(*sampled) + ", expected " +
             row.at("argmax_after_penalties").dump();
    }
  } else {
    SamplingDistribution distribution;
    const auto status = distribution.set(logits, params);
    if (!status.ok()) return status.error().message;
    if (auto text = compare_probabilities(distribution, logits, row_of(matrices, "probs", index));
        !text.empty()) {
      return text;
    }
  }
  return compare_logprobs(row, raw, sampler);
}

void replay_bad_words(const std::filesystem::path& folder, ReplayReport& report) {
  const std::filesystem::path tokenizers = folder / ".." / "tokenizers";
  if (!std::filesystem::is_directory(tokenizers)) return;
  std::map<std::string, Result<std::shared_ptr<const Tokenizer>>> loaded;
  for (const json& row : read_json_lines(folder / "bad_words.jsonl")) {
    const std::string name = row.at("tokenizer");
    const std::string title = "bad words " + row.at("bad_words").dump() + " of " + name + ": ";
    const auto& tokenizer =
        loaded.try_emplace(name, Tokenizer::load(tokenizers / name)).first->second;
    if (!tokenizer.ok()) {
      report.add(title + tokenizer.error().message);
      continue;
    }
    const auto ids = tokenize_bad_words(**tokenizer, row.at("bad_words")).value();
    const bool equal = ids == row.at("token_ids").get<std::vector<std::vector<TokenId>>>();
    report.add(equal ? "" : title + json(ids).dump() + ", expected " + row.at("token_ids").dump());
  }
}

}  // namespace

ReplayReport replay_sampling(const std::filesystem::path& folder) {
  ReplayReport report;
  const auto matrices = SafetensorsFile::open(folder / "sampling.safetensors");
  if (!matrices.ok()) {
    report.add(matrices.error().message);
    return report;
  }
  Sampler sampler;
  for (const json& row : read_json_lines(folder / "sampling.jsonl")) {
    const std::string difference = compare_row(row, *matrices, sampler);
    report.add(difference.empty() ? "" : "row " + row.at("row").dump() + ": " + difference);
  }
  replay_bad_words(folder, report);
  return report;
}

}  // namespace troupe
