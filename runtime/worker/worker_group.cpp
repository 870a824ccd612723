#include "runtime/worker/worker_group.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
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
    group.num_draft_layers = std::max(group.num_draft_layers, other.num_draft_layers);
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

void KVReports::add(const KVConnectorOutput& report) {
  const auto count = [this](std::map<RequestId, std::int32_t>& counts, RequestId id) {
    if (++counts[id] < num_ranks_) return false;
    counts.erase(id);
    return true;
  };
  for (const RequestId id : report.finished_sending)
    if (count(sending_, id)) complete_.finished_sending.push_back(id);
  failed_.insert(report.failed_recving.begin(), report.failed_recving.end());
  for (const RequestId id : report.finished_recving) {
    if (!count(receiving_, id)) continue;
    complete_.finished_recving.push_back(id);
    if (failed_.erase(id) > 0) complete_.failed_recving.push_back(id);
  }
  complete_.endpoints.insert(complete_.endpoints.end(), report.endpoints.begin(),
                             report.endpoints.end());
  for (const BlockId block : report.invalid_block_ids) {
    auto& blocks = complete_.invalid_block_ids;
    if (std::ranges::find(blocks, block) == blocks.end()) blocks.push_back(block);
  }
}

void ECReports::add(const ECConnectorOutput& report) {
  const auto append = [](auto& to, const auto& from) {
    for (const auto& one : from)
      if (std::ranges::find(to, one) == to.end()) to.push_back(one);
  };
  append(joined_.saved, report.saved);
  append(joined_.loaded, report.loaded);
  append(joined_.failed, report.failed);
  append(joined_.finished_sending, report.finished_sending);
  append(joined_.encoded_ahead, report.encoded_ahead);
  for (const std::string& identifier : report.fetched) {
    if (++fetching_[identifier] < num_ranks_) continue;
    fetching_.erase(identifier);
    joined_.fetched.push_back(identifier);
  }
}

ECConnectorOutput ECReports::take() {
  ECConnectorOutput taken = std::exchange(joined_, {});
  std::erase_if(taken.loaded, [&](const std::string& identifier) {
    return std::ranges::find(taken.failed, identifier) != taken.failed.end();
  });
  return taken;
}

std::optional<ModelRunnerOutput> StepAnswers::add(ModelRunnerOutput answer) {
  if (!answer.kv_connector.empty()) kv_reports_.add(answer.kv_connector);
  if (!answer.ec_connector.empty()) ec_reports_.add(answer.ec_connector);
  const auto found = open_.find(answer.step);
  if (found == open_.end()) return std::nullopt;
  Open& open = found->second;
  ++open.num_answers;
  if (answer.rank == output_rank_)
    open.result = std::move(answer);
  else
    std::ranges::move(answer.request_errors, std::back_inserter(open.request_errors));
  if (open.num_answers < num_ranks_) return std::nullopt;
  ModelRunnerOutput result = std::move(open.result);
  for (auto& [id, error] : open.request_errors) {
    const auto has_failed = [id = id](const auto& other) { return other.first == id; };
    if (std::ranges::none_of(result.request_errors, has_failed))
      result.request_errors.emplace_back(id, std::move(error));
  }
  open_.erase(found);
  result.kv_connector = kv_reports_.take();
  result.ec_connector = ec_reports_.take();
  return result;
}

bool StepAnswers::fail(std::uint64_t step) {
  if (!open_.contains(step)) return false;
  open_.clear();
  return true;
}

std::uint64_t CollectiveCalls::begin(std::string method) {
  Open& open = open_[++last_call_];
  open.method = std::move(method);
  open.results.resize(static_cast<std::size_t>(num_ranks_));
  return last_call_;
}

std::optional<CollectiveRpcReply> CollectiveCalls::add(WorkerRpcReply reply) {
  const auto found = open_.find(reply.call);
  if (found == open_.end() || reply.rank < 0 || reply.rank >= num_ranks_) return std::nullopt;
  Open& open = found->second;
  CollectiveRpcReply joined;
  if (reply.error) {
    joined.error = std::move(reply.error);
    if (num_ranks_ > 1)
      joined.error->message = open.method + ": worker of rank " + std::to_string(reply.rank) +
                              ": " + joined.error->message;
    open_.erase(found);
    return joined;
  }
  std::optional<WorkerResult>& result = open.results[static_cast<std::size_t>(reply.rank)];
  if (!result) ++open.num_replies;
  result = std::move(reply.result);
  if (open.num_replies < num_ranks_) return std::nullopt;
  for (std::optional<WorkerResult>& one : open.results) joined.results.push_back(*std::move(one));
  open_.erase(found);
  return joined;
}

std::optional<CollectiveRpcReply> CollectiveCalls::expire(std::uint64_t call, double timeout_s) {
  const auto found = open_.find(call);
  if (found == open_.end()) return std::nullopt;
  std::string ranks;
  for (std::size_t rank = 0; rank < found->second.results.size(); ++rank) {
    if (found->second.results[rank]) continue;
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  std::array<char, 32> seconds{};
  std::snprintf(seconds.data(), seconds.size(), "%g", timeout_s);
  const std::string text = found->second.method + ": no reply within " + seconds.data() +
                           " s from the workers of rank " + ranks;
  open_.erase(found);
  return CollectiveRpcReply{.results = {}, .error = Error{ErrorCode::kTimeout, text}};
}

}  // namespace troupe
