#pragma once
// Goldens of models that see, from the files of images to tokens.

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/json.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/multimodal/image_inputs.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/support/replay.hpp"
#include "tests/support/replay_models_driver.hpp"

namespace troupe {

/// A prompt as our own processing makes it, and the reference's greedy answer.
struct ImagePrompt {
  std::string name;
  DriverJob job;  ///< greedy, with all log-probabilities
  std::vector<TokenId> expected;
};

class ImagePrompts {
 public:
  /// Throws std::runtime_error with the error's text.
  ImagePrompts(const std::filesystem::path& model, const std::filesystem::path& golden);
  [[nodiscard]] const std::vector<ImagePrompt>& all() const noexcept { return cases_; }
  /// Of a case's tokens, places and pixels; empty: none.
  [[nodiscard]] std::string input_difference(std::size_t index) const;
  /// Of its answer and the logits behind the prompt.
  [[nodiscard]] std::string output_difference(std::size_t index, const DriverResult& result) const;

 private:
  nlohmann::json golden_;
  SafetensorsFile arrays_;
  std::vector<ImagePrompt> cases_;
};

/// All cases, by every instruction set of this CPU.
void replay_vision(const std::filesystem::path& model, const std::filesystem::path& golden,
                   ReplayReport& report);

}  // namespace troupe
