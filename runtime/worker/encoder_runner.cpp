#include "runtime/worker/encoder_runner.hpp"

#include <utility>

#include "messages/encoder_input.hpp"
#include "runtime/models/item_tower.hpp"
#include "runtime/worker/item_encoder.hpp"
#include "runtime/worker/numa.hpp"

namespace troupe {

Result<std::unique_ptr<EncoderRunner>> EncoderRunner::load(const WorkerOptions& options) {
  const int num_threads =
      options.threads > 0 ? options.threads : default_threads(ThreadPool::num_usable_cores(), 1);
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::create({.name = options.device,
                                                                   .cpu_isa = options.cpu_isa,
                                                                   .num_threads = num_threads}));
  ASSIGN_OR_RETURN(LoadedTower loaded, load_tower(options.model, *device,
                                                  {.dtype = options.dtype,
                                                   .quantization = options.quantization,
                                                   .packed_weights_dir = {},
                                                   .mmproj = options.mmproj,
                                                   .parallel = {}}));
  std::string key = encoder_key(loaded.config, loaded.dtype, options.quantization);
  std::unique_ptr<EncoderRunner> runner(
      new EncoderRunner(std::move(device), std::move(loaded), std::move(key)));
  RETURN_IF_ERROR(runner->reserve());
  return runner;
}

Result<void> EncoderRunner::reserve() {
  const MixerMemory memory = loaded_.tower->memory(*device_);
  ASSIGN_OR_RETURN(scratch_, device_->allocate(static_cast<std::size_t>(memory.scratch_bytes),
                                               "an encoder's activations"));
  const auto num_values = static_cast<std::size_t>(loaded_.tower->max_item_rows() * hidden_size());
  ASSIGN_OR_RETURN(rows_, device_->allocate(num_values * sizeof(float), "an encoder's output"));
  return device_->reserve_workspace(memory.workspace_bytes);
}

Result<std::vector<float>> EncoderRunner::encode(const MultiModalFeature& item) {
  ASSIGN_OR_RETURN(const UnpackedItem unpacked, unpack_item(item, shared_items_));
  RETURN_IF_ERROR(loaded_.tower->check_item(unpacked.item));
  const Matrix rows(reinterpret_cast<float*>(rows_.data()), unpacked.item.num_rows, hidden_size());
  for (std::int64_t slice = 0; slice < loaded_.tower->num_item_slices(); ++slice)
    loaded_.tower->encode_slice(*device_, Scratch(scratch_.bytes()), unpacked.item, slice, rows);
  std::vector<float> values(static_cast<std::size_t>(rows.num_rows * rows.num_cols));
  device_->copy_to_host(values.data(), rows.data, values.size() * sizeof(float));
  RETURN_IF_ERROR(device_->synchronize());
  return values;
}

Result<void> EncoderRunner::check_health() const {
  RETURN_IF_ERROR(device_->status());
  return loaded_.checkpoint->check();
}

}  // namespace troupe
