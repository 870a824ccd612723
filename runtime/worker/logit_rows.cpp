#include "runtime/worker/logit_rows.hpp"

#include "runtime/models/layers.hpp"

namespace troupe {

Result<DeviceMemory> allocate_floats(Device& device, std::int64_t num_rows, std::int64_t num_cols,
                                     std::string_view what) {
  return device.allocate(static_cast<std::size_t>(Scratch::padded_bytes(num_rows, num_cols)), what);
}

Result<void> LogitRows::reserve(Device& device, std::int64_t vocab_size) {
  device_ = &device;
  ASSIGN_OR_RETURN(memory_, allocate_floats(device, kMaxRows, vocab_size, "logits"));
  if (device.is_host()) return {};
  ASSIGN_OR_RETURN(host_, Memory::allocate(memory_.size(), "logits"));
  return {};
}

Matrix LogitRows::compute(Model& model, ConstMatrix hidden, Communicator* peers) {
  CHECK(hidden.num_rows <= kMaxRows, hidden.num_rows);
  const Matrix logits(floats(memory_), hidden.num_rows, model.vocab_size());
  model.compute_logits(hidden, peers, logits);
  if (device_->is_host()) return logits;
  const Matrix host(reinterpret_cast<float*>(host_.data()), logits.num_rows, logits.num_cols);
  if (peers != nullptr && peers->group_rank() != 0) return host;
  device_->copy_to_host(
      host.data, logits.data,
      static_cast<std::size_t>(logits.num_rows * logits.num_cols) * sizeof(float));
  // What they say is asked for again when the step is done. Peers have a deadline, so they come
  // first.
  if (peers == nullptr || peers->status().ok()) static_cast<void>(device_->synchronize());
  return host;
}

}  // namespace troupe
