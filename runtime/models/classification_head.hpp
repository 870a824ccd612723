#pragma once
// What makes numbers for classes of the vector of a text.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/models/model_config.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

/// y = W tanh(D x + b) + c, or y = W x + c without a dense layer D. In the host's memory, as a text
/// needs it once; sums are taken in double precision, in the order of the columns.
class ClassificationHead {
 public:
  /// Names without ".weight"; empty `dense`: there is no such layer.
  ClassificationHead(WeightLoader& loader, const ModelConfig& config, const std::string& dense,
                     const std::string& out);

  [[nodiscard]] std::vector<float> apply(std::span<const float> x) const;

 private:
  struct Layer {
    std::int64_t num_rows = 0;
    std::vector<float> weight;  ///< [num_rows, columns]
    std::vector<float> bias;    ///< [num_rows], or none

    Layer(WeightLoader& loader, const std::string& name, std::int64_t num_rows,
          std::int64_t num_cols);
    [[nodiscard]] std::vector<float> apply(std::span<const float> x) const;
  };

  std::optional<Layer> dense_;
  Layer out_;
};

}  // namespace troupe
