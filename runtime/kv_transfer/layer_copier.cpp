#include "runtime/kv_transfer/layer_copier.hpp"

#include <algorithm>
#include <iterator>

namespace troupe {

std::vector<PlacedLayer> layers_in_order(const KVCacheMemory& memory) {
  std::vector<PlacedLayer> layers;
  for (std::size_t group = 0; group < memory.groups.size(); ++group)
    for (std::size_t index = 0; index < memory.groups[group].size(); ++index)
      layers.push_back({memory.groups[group][index].layer, group, index});
  std::ranges::stable_sort(layers, {}, &PlacedLayer::layer);
  return layers;
}

// ---- LayerCopier --------------------------------------------------------------------------------

LayerCopier::~LayerCopier() {
  drop();
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LayerCopier::begin(const KVCacheMemory& memory, CopyLayer copy) {
  layers_.clear();
  added_.clear();
  for (const std::vector<KVCacheMemory::Layer>& group : memory.groups) {
    std::vector<std::int32_t>& numbers = layers_.emplace_back();
    for (const KVCacheMemory::Layer& layer : group) numbers.push_back(layer.layer);
    added_.emplace_back(group.size());
  }
  copy_ = std::move(copy);
}

void LayerCopier::add(std::int32_t layer) {
  if (!copy_) return;
  for (std::size_t group = 0; group < layers_.size(); ++group) {
    const auto found = std::ranges::find(layers_[group], layer);
    if (found == layers_[group].end()) continue;
    const auto index = static_cast<std::size_t>(found - layers_[group].begin());
    added_[group][index] = true;
    {
      const std::lock_guard lock(mutex_);
      waiting_.emplace_back(group, index);
    }
    changed_.notify_all();
  }
}

void LayerCopier::finish() {
  if (!copy_) return;
  for (std::size_t group = 0; group < added_.size(); ++group)
    for (std::size_t index = 0; index < added_[group].size(); ++index)
      if (!added_[group][index]) copy_(group, index);
  wait();
  copy_ = nullptr;
}

void LayerCopier::drop() {
  {
    const std::lock_guard lock(mutex_);
    waiting_.clear();
  }
  wait();
  copy_ = nullptr;
}

/// For copies within the memory.
void LayerCopier::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() && !is_busy_; });
}

void LayerCopier::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const auto [group, index] = waiting_.front();
    waiting_.pop_front();
    is_busy_ = true;
    lock.unlock();
    copy_(group, index);
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}

// ---- LayeredLoad --------------------------------------------------------------------------------

bool LayeredLoad::put_layer(std::size_t index, const std::function<void()>& copy) {
  {
    const std::lock_guard lock(mutex_);
    if (is_given_up_) return false;
    copy();
    num_layers_ = index + 1;
  }
  changed_.notify_all();
  return true;
}

void LayeredLoad::end(bool is_valid) {
  {
    const std::lock_guard lock(mutex_);
    is_valid_ = is_valid;
  }
  changed_.notify_all();
}

bool LayeredLoad::wait_for_layer(std::size_t index, Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return num_layers_ > index || is_valid_.has_value(); });
  return num_layers_ > index;
}

bool LayeredLoad::wait_for_end(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (is_given_up_) return false;
  changed_.wait_until(lock, deadline, [&] { return is_valid_.has_value(); });
  return is_valid_.value_or(false);
}

void LayeredLoad::give_up() {
  const std::lock_guard lock(mutex_);
  is_given_up_ = true;
}

// ---- StepLoads ----------------------------------------------------------------------------------

void StepLoads::add(RequestId id, std::vector<BlockId> blocks, std::shared_ptr<LayeredLoad> load,
                    std::chrono::milliseconds timeout) {
  loads_.push_back(
      {id, std::move(blocks), std::move(load), std::chrono::steady_clock::now() + timeout});
}

void StepLoads::wait_for_layer(const KVCacheMemory& memory, std::int32_t layer) {
  if (loads_.empty()) return;
  const std::vector<PlacedLayer> layers = layers_in_order(memory);
  const auto end = std::ranges::upper_bound(layers, layer, {}, &PlacedLayer::layer);
  if (end == layers.begin() || std::prev(end)->layer != layer) return;
  const auto index = static_cast<std::size_t>(end - layers.begin()) - 1;
  for (Load& load : loads_)
    if (!load.state->wait_for_layer(index, load.deadline)) load.state->give_up();
}

void StepLoads::report(KVConnectorOutput& output) {
  for (const Load& load : std::exchange(loads_, {})) {
    output.finished_recving.push_back(load.id);
    if (load.state->wait_for_end(load.deadline)) continue;
    load.state->give_up();
    output.invalid_block_ids.insert(output.invalid_block_ids.end(), load.blocks.begin(),
                                    load.blocks.end());
  }
}

void StepLoads::drop() {
  for (const Load& load : std::exchange(loads_, {})) load.state->give_up();
}

}  // namespace troupe
