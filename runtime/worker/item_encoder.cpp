#include "runtime/worker/item_encoder.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"

namespace troupe {
Result<UnpackedItem> unpack_item(const MultiModalFeature& feature, SharedItemReader& shared) {
  UnpackedItem unpacked;
  std::span<const char> data;
  if (feature.data != nullptr) data = *feature.data;
  if (const auto address = unpack_shared_item(data)) {
    auto pinned = shared.read(*address);
    if (!pinned.ok())
      return Error{pinned.error().code,
                   "item " + feature.identifier + ": " + pinned.error().message};
    data = pinned->bytes;
    unpacked.pin = std::move(pinned->pin);
  }
  auto input = unpack_encoder_input(data);
  if (!input)
    return Error{ErrorCode::kInternal, "item " + feature.identifier + ": its data is not an array"};
  unpacked.input = *std::move(input);
  if (!unpacked.input.widened.empty()) unpacked.pin.reset();
  unpacked.item = {.modality = feature.modality,
                   .values = unpacked.input.values,
                   .shape = unpacked.input.shape,
                   .num_rows = num_embeds(feature)};
  return unpacked;
}

Result<ItemEncoder> ItemEncoder::create(Device& device, Model& model, std::int64_t capacity) {
  const std::int64_t max_rows = model.max_item_rows();
  CHECK(max_rows > 0);
  ASSIGN_OR_RETURN(
      EncoderOutputs outputs,
      EncoderOutputs::create(device, std::max(capacity, max_rows), model.hidden_size()));
  const auto num_bytes = static_cast<std::size_t>(max_rows * model.hidden_size()) * sizeof(float);
  ASSIGN_OR_RETURN(DeviceMemory rows, device.allocate(num_bytes, "an encoder's output"));
  return ItemEncoder(device, model, std::move(outputs), std::move(rows));
}

void ItemEncoder::update(const SchedulerOutput& step) {
  if (step.reset_encoder_cache) outputs_.clear();
  for (const std::string& identifier : step.free_encoder_identifiers) outputs_.remove(identifier);
}

Result<std::vector<std::string>> ItemEncoder::encode(
    std::span<const MultiModalFeature* const> items) {
  std::vector<std::string> encoded;
  for (const MultiModalFeature* const item : items) {
    if (outputs_.has(item->identifier)) continue;
    RETURN_IF_ERROR(encode_one(*item));
    encoded.push_back(item->identifier);
  }
  return encoded;
}

template <class GoesOn>
std::int64_t ItemEncoder::run_slices(const EncoderItem& item, std::int64_t begin,
                                     GoesOn&& goes_on) {
  const Matrix rows(reinterpret_cast<float*>(rows_.data()), item.num_rows, model_->hidden_size());
  while (begin < model_->num_item_slices() && goes_on()) model_->encode_slice(item, begin++, rows);
  return begin;
}

Result<void> ItemEncoder::encode_one(const MultiModalFeature& item) {
  const auto failed = [&](ErrorCode code, const std::string& reason) {
    return Error{code, "item " + item.identifier + ": " + reason};
  };
  const bool is_ahead =
      ahead_ && !ahead_->is_wrong && ahead_->feature.identifier == item.identifier;
  UnpackedItem own;
  if (!is_ahead) {
    ASSIGN_OR_RETURN(own, unpack_item(item, shared_items_));
  }
  const EncoderItem& encoded = is_ahead ? ahead_->unpacked.item : own.item;
  if (const auto status = model_->check_item(encoded); !status.ok())
    return failed(status.error().code, status.error().message);
  const std::span<const std::int32_t> places = outputs_.add(item.identifier, encoded.num_rows);
  if (places.empty())
    return failed(ErrorCode::kInternal,
                  "it has " + std::to_string(encoded.num_rows) + " embeddings, of the " +
                      std::to_string(outputs_.memory().num_rows) + " of the encoder cache " +
                      std::to_string(outputs_.num_free_rows()) + " are free");
  run_slices(encoded, is_ahead ? ahead_->num_slices_done : 0, [] { return true; });
  // Neighbouring rows together.
  const Matrix kept = outputs_.memory();
  const Matrix rows(reinterpret_cast<float*>(rows_.data()), encoded.num_rows,
                    model_->hidden_size());
  for (std::size_t first = 0; first < places.size();) {
    std::size_t end = first + 1;
    while (end < places.size() && places[end] == places[end - 1] + 1) ++end;
    device_->copy(kept.row(places[first]), rows.row(static_cast<std::int64_t>(first)),
                  (end - first) * static_cast<std::size_t>(rows.num_cols) * sizeof(float));
    first = end;
  }
  ++num_encoded_;
  // The encoder has room for one: what was on its way begins again.
  if (is_ahead)
    ahead_.reset();
  else if (ahead_)
    ahead_->num_slices_done = 0;
  return {};
}

void ItemEncoder::begin_ahead(const MultiModalFeature& feature) {
  ahead_ = ItemAhead{.feature = feature, .unpacked = {}};
  auto unpacked = unpack_item(ahead_->feature, shared_items_);
  ahead_->is_wrong = !unpacked.ok() || !model_->check_item(unpacked->item).ok();
  if (!ahead_->is_wrong) ahead_->unpacked = std::move(unpacked).value();
}

void ItemEncoder::encode_ahead(const SchedulerOutput& step) {
  if (!step.encode_ahead) return;
  const std::string& identifier = step.encode_ahead->identifier;
  const bool is_known = ahead_ && ahead_->feature.identifier == identifier;
  if (step.encode_ahead->data != nullptr) {
    if (!is_known) begin_ahead(*step.encode_ahead);
    if (is_encoded(*ahead_)) encoded_ahead_.push_back(identifier);
  } else if (!is_known) {
    encoded_ahead_.push_back(identifier);  // a step has needed it in the meantime
    return;
  }
  if (is_encoded(*ahead_)) return;
  constexpr std::int64_t kNsPerMs = 1'000'000;
  const std::int64_t end_ns = steady_ns() + step.encode_ahead_ms * kNsPerMs;
  bool is_first = true;
  ahead_->num_slices_done = run_slices(ahead_->unpacked.item, ahead_->num_slices_done, [&] {
    return std::exchange(is_first, false) || steady_ns() < end_ns;
  });
  if (is_encoded(*ahead_)) encoded_ahead_.push_back(identifier);
}

void ItemEncoder::clear() {
  outputs_.clear();
  ahead_.reset();
  encoded_ahead_.clear();
}

}  // namespace troupe
