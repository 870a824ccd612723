#include "runtime/models/model.hpp"

#include <string>

#include "runtime/base/check.hpp"

namespace troupe {

Result<void> Model::check_blend() const {
  return Error{ErrorCode::kUnsupported,
               "blending needs a decoder whose layers have full attention with rotary embedding",
               "kv-transfer-config"};
}

Result<void> Model::check_item(const EncoderItem& item) const {
  return Error{ErrorCode::kUnsupported, std::string("the model has no encoder, it cannot take ") +
                                            std::string(item.modality) + " inputs"};
}

void Model::encode_slice(const EncoderItem&, std::int64_t, Matrix) {
  CHECK(false);  // check_item() takes no item
}

Result<void> Model::keep_layer_inputs(std::vector<std::int32_t>) {
  return Error{ErrorCode::kUnsupported, "the model does not give the inputs of its layers"};
}

ConstMatrix Model::kept_layer_inputs() const { return {}; }

void Model::embed_tokens(const ForwardBatch& batch, const ForwardBatch&, Matrix) {
  CHECK(false, batch.num_tokens());  // of decoders only
}

std::vector<float> Model::pool(PoolingType type, ConstMatrix hidden) const {
  CHECK(hidden.num_rows > 0 && type != PoolingType::kNone, hidden.num_rows);
  const std::int64_t row = type == PoolingType::kCls ? 0 : hidden.num_rows - 1;
  const auto size = static_cast<std::size_t>(hidden.num_cols);
  if (type != PoolingType::kMean) return {hidden.row(row), hidden.row(row) + size};
  std::vector<double> sums(size);
  for (std::int64_t token = 0; token < hidden.num_rows; ++token)
    for (std::size_t i = 0; i < size; ++i) sums[i] += static_cast<double>(hidden.row(token)[i]);
  std::vector<float> mean(size);
  for (std::size_t i = 0; i < size; ++i)
    mean[i] = static_cast<float>(sums[i] / static_cast<double>(hidden.num_rows));
  return mean;
}

}  // namespace troupe
