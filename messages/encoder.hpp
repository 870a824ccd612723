#pragma once
// Messages to encoders that run apart from the workers, and between the actors that use them.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "messages/error.hpp"
#include "messages/reflect.hpp"
#include "messages/request.hpp"

namespace troupe {

/// InputProcessor -> EncoderRouter: have these items encoded, where an encoder can take them.
/// Answered with Status when each is done or has failed; the workers encode the failed ones.
struct EncodeItems {
  std::vector<MultiModalFeature> items;
  bool operator==(const EncodeItems&) const = default;
};
TROUPE_MESSAGE(EncodeItems, items)

/// EncoderRouter -> Encoder, Encoder -> its worker: encode this item and store its output. Sent
/// without data if the output is likely to exist. Answered with ItemEncoded.
struct EncodeItem {
  MultiModalFeature item;
  bool operator==(const EncodeItem&) const = default;
};
TROUPE_MESSAGE(EncodeItem, item)

struct ItemEncoded {
  bool needs_data = false;  ///< there is no output yet: nothing was done
  std::optional<Error> error;
  bool operator==(const ItemEncoded&) const = default;
};
TROUPE_MESSAGE(ItemEncoded, needs_data, error)

/// To an Encoder, or through the EncoderRouter to one after the other: the output of an item.
/// Answered with EncoderOutputFound.
struct FindEncoderOutput {
  std::string encoder_key;  ///< ModelLoaded::encoder_key
  std::string identifier;
  std::int64_t num_rows = 0;  ///< 0: only check whether it exists
  std::int64_t hidden_size = 0;
  bool operator==(const FindEncoderOutput&) const = default;
};
TROUPE_MESSAGE(FindEncoderOutput, encoder_key, identifier, num_rows, hidden_size)

struct EncoderOutputFound {
  bool found = false;
  std::shared_ptr<const std::vector<char>> values;  ///< float32; null if not requested
  bool operator==(const EncoderOutputFound&) const = default;
};
TROUPE_MESSAGE(EncoderOutputFound, found, values)

/// A node -> the worker of its Encoder: load the model's encoder. Answered with Status.
struct LoadEncoder {
  bool operator==(const LoadEncoder&) const = default;
};
TROUPE_MESSAGE(LoadEncoder)

}  // namespace troupe
