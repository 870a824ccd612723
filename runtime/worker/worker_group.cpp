#include "runtime/worker/worker_group.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe {

Result<ModelLoaded> join_loaded(std::span<const ModelLoaded> loaded) {
  CHECK(!loaded.empty());
  ModelLoaded group = loaded.front();
  for (const ModelLoaded& other : loaded.subspan(1)) {
    const auto differ = [&](const char* what, const auto& first, const auto& second) {
      return invalid_argument(std::string("the workers do not fit together: ") + what + " is " +
                              first + " on rank 0, " + second + " on rank " +
                              std::to_string(other.rank));
    };
    const auto differ_in_number = [&](const char* what, std::int32_t first, std::int32_t second) {
      return differ(what, std::to_string(first), std::to_string(second));
    };
    if (other.architecture != group.architecture)
      return differ("architecture", group.architecture, other.architecture);
    if (other.dtype != group.dtype) return differ("dtype", group.dtype, other.dtype);
    if (other.device != group.device) return differ("device", group.device, other.device);
    if (other.cpu_isa != group.cpu_isa) return differ("cpu_isa", group.cpu_isa, other.cpu_isa);
    if (other.max_model_len != group.max_model_len)
      return differ_in_number("max_model_len", group.max_model_len, other.max_model_len);
    if (other.vocab_size != group.vocab_size)
      return differ_in_number("vocab_size", group.vocab_size, other.vocab_size);
    if (other.canonical_shards != group.canonical_shards)
      return differ_in_number("canonical_shards", group.canonical_shards, other.canonical_shards);
    for (const LayerCacheSpec& layer : other.kv_cache_specs) {
      const auto known =
          std::ranges::find(group.kv_cache_specs, layer.layer, &LayerCacheSpec::layer);
      if (known == group.kv_cache_specs.end())
        group.kv_cache_specs.push_back(layer);
      else if (known->spec != layer.spec)
        return differ(("the KV cache of layer " + std::to_string(layer.layer)).c_str(),
                      std::string("one"), std::string("another"));
    }
    group.weight_bytes += other.weight_bytes;
    group.available_bytes = std::min(group.available_bytes, other.available_bytes);
  }
  std::ranges::sort(group.kv_cache_specs, {}, &LayerCacheSpec::layer);
  for (std::size_t i = 0; i < group.kv_cache_specs.size(); ++i)
    if (std::cmp_not_equal(group.kv_cache_specs[i].layer, i))
      return invalid_argument("the workers do not fit together: none of them has layer " +
                              std::to_string(i) + " of the KV cache, there is a layer " +
                              std::to_string(group.kv_cache_specs[i].layer));
  return group;
}

std::optional<ModelRunnerOutput> StepAnswers::add(ModelRunnerOutput answer) {
  const auto found = open_.find(answer.step);
  if (found == open_.end()) return std::nullopt;
  Open& open = found->second;
  ++open.num_answers;
  if (answer.rank == output_rank_) open.result = std::move(answer);
  if (open.num_answers < num_ranks_) return std::nullopt;
  ModelRunnerOutput result = std::move(open.result);
  open_.erase(found);
  return result;
}

bool StepAnswers::fail(std::uint64_t step) {
  if (!open_.contains(step)) return false;
  open_.clear();
  return true;
}

}  // namespace troupe
