#pragma once
// Replaying reference data: each kind runs our code over a folder of golden vectors and reports
// where it differs. The program replay_goldens and the golden tests call these.

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace troupe {

struct ReplayReport {
  static constexpr std::size_t kMaxDifferences = 10;

  std::size_t num_cases = 0;
  std::size_t num_mismatches = 0;
  std::vector<std::string> differences;  ///< the first kMaxDifferences, in words

  /// Counts one case; `difference` is empty when it was equal.
  void add(const std::string& difference) {
    ++num_cases;
    if (difference.empty()) return;
    ++num_mismatches;
    if (differences.size() < kMaxDifferences) differences.push_back(difference);
  }
};

/// `folder` is one tokenizer's folder (tokenizer.json, vectors.jsonl, decode.jsonl, pairs.jsonl) or
/// a folder of such folders.
ReplayReport replay_tokenizers(const std::filesystem::path& folder);
ReplayReport replay_templates(const std::filesystem::path& folder);
ReplayReport replay_sampling(const std::filesystem::path& folder);
/// Images: decoding, resizing, pixel values, pan and scan.
ReplayReport replay_images(const std::filesystem::path& folder);
/// `isas`: the instruction sets whose float32 is compared; all that this machine has, if empty.
ReplayReport replay_models(const std::filesystem::path& folder,
                           const std::vector<std::string>& isas = {});
/// The first greedy tokens behind the shorter prompts of these models, in float32 on that device.
ReplayReport replay_on_device(const std::filesystem::path& folder, const std::string& device,
                              const std::vector<std::string>& models);

}  // namespace troupe
