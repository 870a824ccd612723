#include "runtime/models/classification_head.hpp"

#include <cmath>

namespace troupe {

ClassificationHead::Layer::Layer(WeightLoader& loader, const std::string& name, std::int64_t rows,
                                 std::int64_t num_cols)
    : num_rows(rows), weight(loader.rows(name, rows, num_cols)) {
  if (loader.has(name + ".bias")) bias = loader.values(name + ".bias", rows);
}

std::vector<float> ClassificationHead::Layer::apply(std::span<const float> x) const {
  std::vector<float> y(static_cast<std::size_t>(num_rows));
  for (std::size_t row = 0; row < y.size(); ++row) {
    const float* const weights = weight.data() + row * x.size();
    double sum = bias.empty() ? 0 : static_cast<double>(bias[row]);
    for (std::size_t i = 0; i < x.size(); ++i)
      sum += static_cast<double>(weights[i]) * static_cast<double>(x[i]);
    y[row] = static_cast<float>(sum);
  }
  return y;
}

ClassificationHead::ClassificationHead(WeightLoader& loader, const ModelConfig& config,
                                       const std::string& dense, const std::string& out)
    : out_(loader, out, std::ssize(config.labels), config.hidden_size) {
  if (!dense.empty()) dense_.emplace(loader, dense, config.hidden_size, config.hidden_size);
}

std::vector<float> ClassificationHead::apply(std::span<const float> x) const {
  if (!dense_) return out_.apply(x);
  std::vector<float> inner = dense_->apply(x);
  for (float& value : inner) value = std::tanh(value);
  return out_.apply(inner);
}

}  // namespace troupe
