#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <unordered_set>

#include "messages/wire.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/philox.hpp"
#include "runtime/kv_transfer/connectors.hpp"
#include "runtime/kv_transfer/metadata_text.hpp"
#include "runtime/models/half_floats.hpp"

namespace troupe {

/// The metadata of a step: blocks to be filled, whatever their group.
struct BlocksToFill {
  std::vector<std::pair<std::int32_t, BlockId>> blocks;  ///< KV-cache group, block
};
TROUPE_MESSAGE(BlocksToFill, blocks)

namespace {

struct FillOptions {
  double mean = 0.015;
  double deviation = 0;
};

Result<FillOptions> read_fill_options(const ConnectorConfig& config) {
  FillOptions options;
  ConnectorExtraConfig extra(ConnectorKind::kKV, config);
  ASSIGN_OR_RETURN(options.mean, extra.take_real("fill_mean", options.mean));
  ASSIGN_OR_RETURN(options.deviation, extra.take_real("fill_std", options.deviation, 0));
  RETURN_IF_ERROR(extra.check_empty());
  return options;
}

Result<void> check_fillable(const KVCacheConfig& cache) {
  for (const KVCacheGroup& group : cache.groups) {
    const TokenShape* const token = group.spec.token();
    if (token != nullptr && token->scale_bytes == 0) continue;
    return Error{ErrorCode::kUnsupported,
                 std::string("kv-transfer-config: DecodeBenchConnector cannot fill layers of the "
                             "kind ") +
                     group.spec.kind_name() + (token == nullptr ? "" : " of 8 bits"),
                 "kv-transfer-config"};
  }
  return {};
}

class DecodeBenchConnector final : public KVConnector {
 public:
  explicit DecodeBenchConnector(std::size_t num_groups) : num_groups_(num_groups) {}

  std::optional<Match> get_num_new_matched_tokens(const RequestState& request,
                                                  std::int32_t num_local_tokens) override {
    if (filled_.contains(request.id)) return Match{};
    return Match{.num_tokens = std::max(0, request.num_tokens() - 1 - num_local_tokens)};
  }
  void update_state_after_alloc(const RequestState& request, const BlockTable& blocks,
                                std::int32_t num_external_tokens) override {
    if (num_external_tokens == 0) return;
    filled_.insert(request.id);
    CHECK(blocks.size() == num_groups_, blocks.size());
    for (std::size_t g = 0; g < num_groups_; ++g)
      for (const BlockId block : blocks[g])
        if (block != kNullBlock) next_.blocks.emplace_back(static_cast<std::int32_t>(g), block);
  }
  bool reset_cache() override { return true; }  // it stores nothing
  Finished request_finished(const RequestState& request, const BlockTable&) override {
    filled_.erase(request.id);
    return {};
  }
  std::string build_connector_metadata(const SchedulerOutput&) override {
    if (next_.blocks.empty()) return {};
    return metadata_text(std::exchange(next_, {}));
  }

 private:
  std::size_t num_groups_;
  std::unordered_set<RequestId> filled_;  // one that is preempted computes its tokens
  BlocksToFill next_;
};

class DecodeBenchConnectorWorker final : public KVConnectorWorker {
 public:
  explicit DecodeBenchConnectorWorker(const FillOptions& options) : options_(options) {}

  Result<void> register_kv_caches(const KVCacheMemory& memory) override {
    RETURN_IF_ERROR(check_fillable(memory.config));
    memory_ = memory;
    return {};
  }
  void start_load_kv(const std::string& metadata) override {
    BlocksToFill fill;
    CHECK(wire::decode(metadata.data(), metadata.size(), fill), metadata.size());
    for (const auto& [group, block] : fill.blocks)
      fill_block(static_cast<std::size_t>(group), block);
    if (!memory_.device->is_host()) CHECK(memory_.device->synchronize().ok());
  }
  void wait_for_save() override {}
  KVConnectorOutput get_finished() override { return {}; }

 private:
  void fill_block(std::size_t group, BlockId block) {
    const DType type = memory_.config.groups[group].spec.token()->dtype;
    for (const KVCacheMemory::Layer& layer : memory_.groups[group]) {
      page_.resize(static_cast<std::size_t>(layer.page_bytes));
      const auto size = static_cast<std::size_t>(dtype_bytes(type));
      for (std::size_t at = 0; at + size <= page_.size(); at += size)
        write(page_.data() + at, type);
      memory_.device->copy_to_device(layer.data + block * layer.page_bytes, page_.data(),
                                     page_.size());
    }
  }
  void write(std::byte* to, DType type) {
    const auto number = static_cast<float>(next_number());
    if (type == DType::kF32) {
      std::memcpy(to, &number, sizeof number);
    } else if (type == DType::kBF16) {
      const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(number) >> 16);
      std::memcpy(to, &bits, sizeof bits);
    } else {
      const std::uint16_t bits = narrow_to_f16(number);
      std::memcpy(to, &bits, sizeof bits);
    }
  }
  /// Normally distributed (Box and Muller).
  double next_number() {
    if (options_.deviation == 0) return options_.mean;
    const double radius = std::sqrt(-2 * std::log1p(-philox_uniform(0, num_drawn_, 0)));
    const double angle = 2 * std::numbers::pi * philox_uniform(0, num_drawn_, 1);
    ++num_drawn_;
    return options_.mean + options_.deviation * radius * std::cos(angle);
  }

  FillOptions options_;
  KVCacheMemory memory_;
  std::vector<std::byte> page_;
  std::uint64_t num_drawn_ = 0;
};

}  // namespace

Result<std::shared_ptr<KVConnector>> make_decode_bench_connector(
    const KVConnectorContext& context) {
  RETURN_IF_ERROR(read_fill_options(context.config));
  RETURN_IF_ERROR(check_fillable(context.cache));
  return std::shared_ptr<KVConnector>(
      std::make_shared<DecodeBenchConnector>(context.cache.groups.size()));
}

Result<std::unique_ptr<KVConnectorWorker>> make_decode_bench_connector_worker(
    const KVConnectorWorkerContext& context) {
  ASSIGN_OR_RETURN(const FillOptions options, read_fill_options(context.config));
  return std::unique_ptr<KVConnectorWorker>(std::make_unique<DecodeBenchConnectorWorker>(options));
}

}  // namespace troupe
