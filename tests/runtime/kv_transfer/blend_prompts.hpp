#pragma once
// Prompts of paragraphs in changing order, for engines with a BlendConnector.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/runtime/kv_transfer/temporary_folder.hpp"
#include "tests/runtime/kv_transfer/transfer_engine.hpp"

namespace troupe::testing {

inline const std::vector<TokenId> kSeparator = {5, 6};

inline std::string blending(const std::string& extra, const std::string& separator = "5 6") {
  return R"({"kv_connector":"BlendConnector","kv_role":"kv_both","kv_connector_extra_config":{)"
         R"("blend_min_tokens":8)" +
         (separator.empty() ? "" : R"(,"blend_special_str":")" + separator + "\"") +
         (extra.empty() ? "" : "," + extra) + "}}";
}

/// 14 to 23 tokens.
inline std::vector<TokenId> paragraph(std::int32_t number) {
  std::vector<TokenId> tokens;
  for (std::int32_t t = 0; t < 14 + number * 3 % 10; ++t)
    tokens.push_back(10 + (number * 37 + t * (7 + number) + t * t % 13) % 80);
  return tokens;
}

inline std::vector<TokenId> prompt_of(const std::vector<std::int32_t>& paragraphs,
                                      const std::vector<TokenId>& question = {91, 92, 93}) {
  std::vector<TokenId> prompt = {9};
  for (const std::int32_t number : paragraphs) {
    prompt.insert(prompt.end(), kSeparator.begin(), kSeparator.end());
    const std::vector<TokenId> tokens = paragraph(number);
    prompt.insert(prompt.end(), tokens.begin(), tokens.end());
  }
  prompt.insert(prompt.end(), kSeparator.begin(), kSeparator.end());
  prompt.insert(prompt.end(), question.begin(), question.end());
  return prompt;
}

/// Of a prompt, without separators.
inline std::int32_t num_tokens_of(const std::vector<std::int32_t>& paragraphs,
                                  std::int32_t num_others = 4) {
  std::int32_t count = num_others;
  for (const std::int32_t number : paragraphs)
    count += static_cast<std::int32_t>(paragraph(number).size());
  return count;
}

inline const std::vector<std::int32_t> kOrder = {0, 1, 2, 3, 4, 5};
inline const std::vector<std::int32_t> kOther = {3, 5, 1, 0, 4, 2};

inline std::vector<Answer> exact(EngineSetup setup,
                                 const std::vector<std::vector<TokenId>>& prompts) {
  setup.transfer.clear();
  setup.tensor_parallel_size = 1;
  setup.pipeline_parallel_size = 1;
  setup.num_blocks = 100;
  TransferEngine engine(setup);
  return engine.run(prompts);
}

inline std::vector<std::filesystem::path> piece_files(const BlockFolder& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    if (entry.path().extension() == ".bin") files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

inline std::string blending_from(const BlockFolder& folder, const std::string& ratio = "1") {
  return blending(R"("blend_recompute_ratios":)" + ratio + R"(,"local_disk":"file://)" +
                  folder.path().string() + R"(","max_local_disk_size":1)");
}

inline double first_token_distance(const Answer& a, const Answer& b) {
  double sum = 0;
  // Of the first token alone: those behind it may be others.
  for (std::size_t i = 0; i < 2; ++i)
    sum += std::fabs(static_cast<double>(a.logprobs.at(i) - b.logprobs.at(i)));
  return sum;
}

}  // namespace troupe::testing
