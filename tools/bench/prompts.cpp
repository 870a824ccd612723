#include "tools/bench/prompts.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "runtime/base/check.hpp"
#include "runtime/base/json.hpp"

namespace troupe::tools {
namespace {

constexpr const char* kWords[] = {
    "the",  "of",  "and",  "to",    "in",    "is",    "that", "for",   "it",   "was",   "on",
    "with", "he",  "be",   "at",    "by",    "had",   "not",  "are",   "but",  "from",  "or",
    "have", "an",  "they", "one",   "you",   "were",  "all",  "her",   "she",  "there", "would",
    "we",   "him", "been", "has",   "when",  "who",   "will", "no",    "more", "if",    "out",
    "so",   "up",  "said", "what",  "its",   "about", "than", "into",  "them", "can",   "only",
    "time", "new", "some", "could", "these", "two",   "may",  "first", "then", "do",
};

using Generator = std::mt19937_64;

/// Draws lengths and contents; element(generator) draws one element of a prompt.
template <class Element, class Draw, class Make>
std::vector<BenchPrompt> random_prompts(const RandomPromptOptions& options, Draw&& draw,
                                        Make&& make) {
  CHECK(options.range_ratio >= 0 && options.range_ratio < 1, options.range_ratio);
  Generator generator(options.seed);
  const auto length = [&](std::int64_t middle) {
    const auto radius =
        static_cast<std::int64_t>(std::floor(static_cast<double>(middle) * options.range_ratio));
    return std::uniform_int_distribution<std::int64_t>(middle - radius, middle + radius)(generator);
  };
  std::vector<Element> prefix(static_cast<std::size_t>(options.prefix_len));
  for (Element& element : prefix) element = draw(generator);
  std::vector<BenchPrompt> prompts;
  for (std::int64_t i = 0; i < options.num_prompts; ++i) {
    std::vector<Element> elements = prefix;
    const std::int64_t input_len = length(options.input_len);
    for (std::int64_t n = 0; n < input_len; ++n) {
      const bool repeats = options.repeat_len > 0 && n >= options.repeat_len;
      elements.push_back(
          repeats ? elements[elements.size() - static_cast<std::size_t>(options.repeat_len)]
                  : draw(generator));
    }
    const auto num_elements = static_cast<std::int64_t>(elements.size());
    prompts.push_back({.prompt = make(std::move(elements)),
                       .num_input_tokens = num_elements,
                       .num_output_tokens = std::max<std::int64_t>(length(options.output_len), 1)});
  }
  return prompts;
}

}  // namespace

std::vector<BenchPrompt> random_token_prompts(const RandomPromptOptions& options,
                                              const std::vector<TokenId>& vocabulary) {
  CHECK(!vocabulary.empty());
  std::uniform_int_distribution<std::size_t> index(0, vocabulary.size() - 1);
  return random_prompts<TokenId>(
      options, [&](Generator& generator) { return vocabulary[index(generator)]; },
      [](std::vector<TokenId> ids) { return TokensPrompt{std::move(ids)}; });
}

std::vector<BenchPrompt> random_word_prompts(const RandomPromptOptions& options) {
  std::uniform_int_distribution<std::size_t> index(0, std::size(kWords) - 1);
  std::vector<BenchPrompt> prompts = random_prompts<const char*>(
      options, [&](Generator& generator) { return kWords[index(generator)]; },
      [](const std::vector<const char*>& words) {
        TextPrompt prompt;
        for (const char* word : words)
          prompt.text.append(prompt.text.empty() ? "" : " ").append(word);
        return prompt;
      });
  for (BenchPrompt& prompt : prompts) prompt.num_input_tokens = 0;
  return prompts;
}

Result<std::vector<BenchPrompt>> read_prompts(std::istream& lines,
                                              std::int64_t default_output_len) {
  using Json = nlohmann::json;
  std::vector<BenchPrompt> prompts;
  std::size_t number = 0;
  for (std::string text; std::getline(lines, text);) {
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto wrong = [&](const std::string& what) {
      return Error{ErrorCode::kCorrupt, "line " + std::to_string(number) + ": " + what, ""};
    };
    const Json line = Json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("prompt") || !line["prompt"].is_string()) {
      return wrong(R"(expected an object like {"prompt": "text", "output_tokens": 64})");
    }
    const Json output_len = line.value("output_tokens", Json(default_output_len));
    if (!output_len.is_number_integer() || output_len.get<std::int64_t>() < 1) {
      return wrong("output_tokens is " + output_len.dump() + ", expected an integer from 1");
    }
    prompts.push_back({.prompt = TextPrompt{.text = line["prompt"].get<std::string>()},
                       .num_output_tokens = output_len.get<std::int64_t>()});
  }
  return prompts;
}

std::vector<double> arrival_times(std::int64_t num_requests, double rate, double burstiness,
                                  std::uint64_t seed) {
  std::vector<double> times(static_cast<std::size_t>(num_requests));
  if (std::isinf(rate)) return times;
  CHECK(rate > 0 && burstiness > 0, rate, burstiness);
  Generator generator(seed);
  std::gamma_distribution<double> gap(burstiness, 1 / (rate * burstiness));
  double now = 0;
  for (double& time : times) time = now += gap(generator);
  if (now == 0) return times;
  const double scale = static_cast<double>(num_requests) / rate / now;
  for (double& time : times) time *= scale;
  return times;
}

}  // namespace troupe::tools
