#include "runtime/models/parallel.hpp"

#include <string>

namespace troupe {

Result<void> check_parallel(const ModelConfig& config, const ParallelConfig& parallel) {
  const std::int64_t tp = parallel.tensor_parallel_size;
  const auto refuse = [](const char* option, std::int64_t value, const std::string& reason) {
    return invalid_argument(std::string(option) + " " + std::to_string(value) + ": " + reason,
                            option);
  };
  const auto cannot_divide = [&](std::int64_t count, const char* what) {
    return refuse("tensor-parallel-size", tp,
                  std::to_string(count) + " " + what + " cannot be divided");
  };
  if (config.num_heads % tp != 0) return cannot_divide(config.num_heads, "attention heads");
  if (config.num_kv_heads % tp != 0 && tp % config.num_kv_heads != 0)
    return cannot_divide(config.num_kv_heads, "KV heads");
  if (config.intermediate_size % tp != 0)
    return cannot_divide(config.intermediate_size, "columns of the MLP");
  if (config.canonical_shards() % tp != 0)
    return refuse("tensor-parallel-size", tp,
                  "this model's sums have " + std::to_string(config.canonical_shards()) +
                      " parts, which is the most that compute the same bits as one worker");
  if (parallel.expert_parallel && !config.experts)
    return invalid_argument("enable-expert-parallel: the model has no experts",
                            "enable-expert-parallel");
  if (parallel.expert_parallel && config.experts->num_experts < tp)
    return refuse("tensor-parallel-size", tp,
                  std::to_string(config.experts->num_experts) +
                      " experts are fewer than the workers that are to have some each");
  if (parallel.pipeline_parallel_size > config.num_layers)
    return refuse("pipeline-parallel-size", parallel.pipeline_parallel_size,
                  "there are " + std::to_string(config.num_layers) + " layers");
  return {};
}

}  // namespace troupe
