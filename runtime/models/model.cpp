#include "runtime/models/model.hpp"

#include <string>

namespace troupe {

Result<void> Model::encode(std::span<const EncoderItem> items, Communicator*, Matrix) {
  if (items.empty()) return {};
  return Error{ErrorCode::kUnsupported, std::string("the model has no encoder, it cannot take ") +
                                            std::string(items.front().modality) + " inputs"};
}

Result<void> Model::pool(ConstMatrix, std::span<const std::int32_t>, Matrix) {
  return Error{ErrorCode::kUnsupported,
               "the model has no pooler: it generates tokens and gives no embeddings of texts"};
}

}  // namespace troupe
