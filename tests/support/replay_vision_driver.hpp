#pragma once
// Golden prompts with images, and a model that computes them, with the rows of the reference's
// projector in the images' places.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/models/load_model.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/worker/flat_batch.hpp"
#include "runtime/worker/layer_caches.hpp"

namespace troupe {

/// A prompt with images, as the reference had it.
struct VisionCase {
  std::string name;
  std::vector<TokenId> prompt;
  std::vector<std::int32_t> places;  ///< of the images' tokens
  std::vector<float> rows;           ///< for these
  std::vector<TwoWaySpan> spans;     ///< of the images
  std::vector<float> logits;         ///< behind the prompt
  std::vector<TokenId> greedy;

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(prompt.size()); }
};

/// Those of a folder with golden.json and golden.safetensors. `kind` stands before what the model
/// computes: "causal_" has what it computes without spans.
std::vector<VisionCase> read_vision_cases(const std::string& folder, const std::string& kind = "");
std::vector<float> golden_floats(const SafetensorsFile& arrays, const std::string& name);
/// NaN counts as infinite.
float largest_error(const std::vector<float>& got, const std::vector<float>& want);

class VisionDriver {
 public:
  /// A model folder or file in float32, with the named instruction set.
  VisionDriver(const std::string& model, const std::string& isa,
               const ModelLoadOptions& options = {.dtype = "float32"});

  [[nodiscard]] Model& model() { return *loaded_.model; }
  /// A row of the tables with blocks for so many tokens.
  std::int32_t add_sequence(std::int32_t num_tokens);
  void clear();
  /// The tokens [begin, end) of the case's prompt; the last one's hidden state is asked for.
  void add(const VisionCase& one, std::int32_t begin, std::int32_t end, std::int32_t row);
  void add(TokenId token, std::int32_t position, std::int32_t row);
  /// Of each sequence, the logits behind it.
  std::vector<std::vector<float>> forward();
  /// The model's encoder output for an image.
  std::vector<float> encode(const std::vector<float>& pixels, std::int64_t side);
  /// Of each case alone, the logits behind it.
  std::vector<std::vector<float>> prefill(const std::vector<VisionCase>& cases);
  /// What is wrong with the case: its logits by more than 1e-3, or its greedy tokens, of which
  /// at most so many are computed. Empty: nothing.
  std::string replay(const VisionCase& one, std::size_t max_greedy);

 private:
  std::unique_ptr<Device> device_;
  LoadedModel loaded_;
  std::vector<Memory> memory_;
  std::vector<LayerKvCache> caches_;
  BlockTables tables_;
  FlatBatch flat_;
  std::vector<float> outputs_;  // of the encoder
  BlockId next_block_ = 1;
};

}  // namespace troupe
