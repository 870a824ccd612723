#pragma once
// What a decoder has before it to take in images or sounds: an encoder, and what brings its
// output into the decoder's embeddings.

#include <cstdint>

#include "runtime/base/result.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/layers.hpp"
#include "runtime/models/model.hpp"

namespace troupe {

/// Constant after it is loaded, but for memory of its own that a call leaves without meaning.
class ItemTower {
 public:
  ItemTower() = default;
  virtual ~ItemTower() = default;
  ItemTower(const ItemTower&) = delete;
  ItemTower& operator=(const ItemTower&) = delete;

  /// These four as in Model. `scratch` has the bytes that memory() says; what one slice leaves for
  /// the next one is in the tower's own memory.
  [[nodiscard]] virtual std::int64_t max_item_rows() const noexcept = 0;
  [[nodiscard]] virtual Result<void> check_item(const EncoderItem& item) const = 0;
  [[nodiscard]] virtual std::int64_t num_item_slices() const noexcept = 0;
  virtual void encode_slice(Device& device, Scratch scratch, const EncoderItem& item,
                            std::int64_t slice, Matrix out) const = 0;
  /// For one item.
  [[nodiscard]] virtual MixerMemory memory(Device& device) const noexcept = 0;
};

}  // namespace troupe
