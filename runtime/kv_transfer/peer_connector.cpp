#include "runtime/kv_transfer/peer_connector.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "messages/wire.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/json.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"
#include "runtime/config/options.hpp"
#include "runtime/kv_transfer/connectors.hpp"
#include "runtime/kv_transfer/metadata_text.hpp"
#include "runtime/kv_transfer/scheduled_requests.hpp"

namespace troupe {
namespace {

using nlohmann::json;

struct PeerOptions {
  double lease_s = 30;
  double timeout_s = 5;
  std::string host;
  std::int64_t port = 0;
  bool uses_devices = false;  ///< transport: nccl instead of host
};

Result<PeerOptions> read_peer_options(const ConnectorConfig& config) {
  PeerOptions options;
  ConnectorExtraConfig extra(ConnectorKind::kKV, config);
  ASSIGN_OR_RETURN(options.lease_s, extra.take_seconds("lease_s", options.lease_s));
  ASSIGN_OR_RETURN(options.timeout_s, extra.take_seconds("timeout_s", options.timeout_s));
  ASSIGN_OR_RETURN(options.host, extra.take_text("host", ""));
  ASSIGN_OR_RETURN(const std::optional<std::int64_t> port, extra.take_number("port", 0));
  options.port = port.value_or(0);
  ASSIGN_OR_RETURN(const std::string transport, extra.take_text("transport", "host"));
  options.uses_devices = transport == "nccl";
  RETURN_IF_ERROR(extra.check_empty());
  const auto wrong = [](const std::string& what) {
    return invalid_argument("kv-transfer-config: kv_connector_extra_config: " + what,
                            "kv-transfer-config");
  };
  if (options.lease_s == 0 || options.timeout_s == 0)
    return wrong("lease_s and timeout_s must be more than 0");
  if (!options.uses_devices && transport != "host")
    return wrong("transport is " + transport + ", it must be host or nccl");
  if (options.uses_devices) {
    RETURN_IF_ERROR(check_peer_devices());
  }
  if (options.port > std::numeric_limits<std::uint16_t>::max())
    return wrong("port is " + std::to_string(options.port) + ", at most 65535 is possible");
  return options;
}

Result<void> check_peer_groups(const KVCacheConfig& cache) {
  for (const KVCacheGroup& group : cache.groups) {
    if (group.spec.token() != nullptr && !group.spec.is<CrossAttentionSpec>()) continue;
    return Error{ErrorCode::kUnsupported,
                 std::string("kv-transfer-config: layers of the kind ") + group.spec.kind_name() +
                     " cannot be transferred",
                 "kv-transfer-config"};
  }
  return {};
}

/// The parameters of a request. Not an object: null.
json params_of(const RequestState& request) {
  return json::parse(request.kv_transfer_params, nullptr, /*allow_exceptions=*/false);
}

bool has_flag(const json& params, const char* name) {
  if (!params.is_object()) return false;
  const auto flag = params.find(name);
  return flag != params.end() && *flag == true;
}

Error wrong_param(const std::string& what) {
  return invalid_argument("kv_transfer_params: " + what, "kv_transfer_params");
}

Result<std::int64_t> number_of(const json& params, const char* name, std::int64_t least,
                               std::int64_t most) {
  const auto found = params.find(name);
  const std::int64_t number =
      found != params.end() && found->is_number_integer() ? found->get<std::int64_t>() : least - 1;
  if (number >= least && number <= most) return number;
  return wrong_param(std::string(name) + " must be an integer from " + std::to_string(least) +
                     " to " + std::to_string(most));
}

}  // namespace

PrefixDigest prefix_digest(const KVCacheRequest& identity, std::span<const TokenId> tokens) {
  KVCacheRequest what;
  what.token_ids = std::vector<TokenId>(tokens.begin(), tokens.end());
  what.cache_salt = identity.cache_salt;
  if (identity.lora)
    what.lora = LoraRequest{.name = identity.lora->name, .int_id = identity.lora->int_id};
  for (const MultiModalFeature& item : identity.mm_features)
    if (std::cmp_less(item.offset, tokens.size())) what.mm_features.push_back(item);
  std::vector<char> bytes;
  wire::encode(what, bytes);
  return sha256({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

// ---- the Scheduler's side -----------------------------------------------------------------------

PeerKVConnector::PeerKVConnector(const KVConnectorContext& context)
    : config_(context.config),
      parallel_(context.parallel),
      num_groups_(context.cache.groups.size()),
      engine_id_(context.config.engine_id.empty() ? random_hex(16) : context.config.engine_id) {}

void PeerKVConnector::on_new_request(const KVCacheRequest& request) {
  Request& known = requests_[request.id] = {};
  known.identity = request;
  known.identity.token_ids = {};
}

void PeerKVConnector::set_endpoints(
    std::span<const std::pair<std::int32_t, std::string>> endpoints) {
  for (const auto& [rank, endpoint] : endpoints) endpoints_[rank] = endpoint;
}

void PeerKVConnector::on_transfer_params(const RequestState& request) {
  Request& known = requests_.at(request.id);
  const json params = params_of(request);
  known.holds = has_flag(params, "do_remote_decode") && config_.is_producer();
  if (known.holds && !request.resumable)
    known.stream = Stream{.is_early = has_flag(params, "begin_early"),
                          .next = {.num_tokens = request.num_prompt_tokens - 1}};
  if (!has_flag(params, "do_remote_prefill") || !config_.is_consumer() || request.resumable) return;
  auto wanted = read_source(request);
  if (!wanted.ok()) {
    log_warning("KV is not loaded, but computed", kv("request", value(request.id)),
                kv("reason", wanted.error().message));
    return;
  }
  known.wanted = std::move(*wanted);
  next_.watches.push_back(known.wanted->source);
}

Result<PeerKVConnector::Wanted> PeerKVConnector::read_source(const RequestState& request) const {
  const json params = params_of(request);
  Wanted wanted;
  const auto key = params.find("remote_request_id");
  if (key == params.end() || !key->is_string() || key->get_ref<const std::string&>().size() > 128)
    return wrong_param("remote_request_id must be a string of at most 128 bytes");
  wanted.source.key = key->get<std::string>();
  constexpr std::int64_t kMaxRanks = 1024;
  ASSIGN_OR_RETURN(const std::int64_t tensor_ranks, number_of(params, "tp_size", 1, kMaxRanks));
  ASSIGN_OR_RETURN(const std::int64_t stages, number_of(params, "pp_size", 1, kMaxRanks));
  ASSIGN_OR_RETURN(const std::int64_t num_tokens,
                   number_of(params, "remote_num_tokens", 0, request.num_tokens()));
  const auto endpoints = params.find("remote_endpoints");
  if (endpoints == params.end() || !endpoints->is_array() ||
      std::cmp_not_equal(endpoints->size(), tensor_ranks * stages))
    return wrong_param("remote_endpoints must have one for each of " +
                       std::to_string(tensor_ranks * stages) + " ranks");
  for (const json& endpoint : *endpoints) {
    if (!endpoint.is_string()) return wrong_param("remote_endpoints must be strings");
    wanted.source.endpoints.push_back(endpoint.get<std::string>());
    RETURN_IF_ERROR(parse_peer_endpoint(wanted.source.endpoints.back()));
  }
  wanted.source.tensor_parallel_size = static_cast<std::int32_t>(tensor_ranks);
  wanted.num_tokens = static_cast<std::int32_t>(num_tokens);
  wanted.source.digest =
      prefix_digest(requests_.at(request.id).identity,
                    std::span(request.token_ids.get()).first(static_cast<std::size_t>(num_tokens)));
  return wanted;
}

/// It will not be loaded, unless another sample of the request does.
void PeerKVConnector::give_up(Wanted& wanted) {
  if (std::exchange(wanted.progress, Progress::kDone) != Progress::kUnused) return;
  for (const auto& [other, request] : requests_)
    if (request.wanted && request.wanted->source.key == wanted.source.key &&
        request.wanted->progress != Progress::kDone)
      return;
  next_.releases.push_back(wanted.source);
}

std::optional<KVConnector::Match> PeerKVConnector::get_num_new_matched_tokens(
    const RequestState& request, std::int32_t num_local_tokens) {
  const auto known = requests_.find(request.id);
  if (known == requests_.end() || !known->second.wanted) return Match{};
  Wanted& wanted = *known->second.wanted;
  if (wanted.progress != Progress::kUnused) return Match{};
  // Another sample loads the same prompt: what it gets is found in the prefix cache.
  for (const auto& [number, load] : open_loads_)
    if (load.source.key == wanted.source.key) return std::nullopt;
  // The last token is always computed, and what it attends to must be there.
  const std::int32_t end = std::min(wanted.num_tokens, request.num_tokens() - 1);
  if (end <= num_local_tokens || request.params.skip_reading_prefix_cache) {
    give_up(wanted);
    return Match{};
  }
  wanted.num_matched_after = num_local_tokens;
  return Match{.num_tokens = end - num_local_tokens, .async = true};
}

void PeerKVConnector::update_state_after_alloc(const RequestState& request,
                                               const BlockTable& blocks,
                                               std::int32_t num_external_tokens) {
  const auto known = requests_.find(request.id);
  if (known == requests_.end()) return;
  if (known->second.stream) {
    Stream& stream = *known->second.stream;
    if (stream.progress == Stream::Progress::kRunning) end_stream(stream);
    stream.next.blocks = blocks;
    if (stream.progress == Stream::Progress::kPossible && stream.next.key.empty()) {
      stream.next.key = make_key(request.id);
      stream.next.id = request.id;
      stream.next.digest = prefix_digest(
          known->second.identity, std::span(request.token_ids.get())
                                      .first(static_cast<std::size_t>(stream.next.num_tokens)));
    }
  }
  if (!known->second.wanted) return;
  Wanted& wanted = *known->second.wanted;
  if (num_external_tokens == 0) return give_up(wanted);
  PeerLoad load{.number = ++last_load_,
                .id = request.id,
                .source = wanted.source,
                .begin_token = wanted.num_matched_after,
                .end_token = wanted.num_matched_after + num_external_tokens,
                .blocks = blocks};
  wanted.progress = Progress::kLoading;
  open_loads_.emplace(load.number, load);
  next_.loads.push_back(std::move(load));
}

/// The last token of a prompt is computed by whoever loads it.
std::int32_t PeerKVConnector::num_tokens_to_keep(const RequestState& request) const {
  const auto known = requests_.find(request.id);
  if (known == requests_.end() || !known->second.holds) return request.num_computed_tokens;
  return std::clamp(request.num_computed_tokens, 0, request.num_prompt_tokens - 1);
}

KVConnector::Finished PeerKVConnector::request_finished(const RequestState& request,
                                                        const BlockTable& blocks) {
  const std::int32_t num_tokens = num_tokens_to_keep(request);
  auto ended = requests_.extract(request.id);
  if (ended.empty()) return {};
  Request& known = ended.mapped();
  if (known.wanted) give_up(*known.wanted);
  const bool is_whole = request.status == RequestStatus::kFinishedLengthCapped ||
                        request.status == RequestStatus::kFinishedStopped;
  const bool streams = known.stream && known.stream->progress == Stream::Progress::kRunning;
  if (!known.holds || !is_whole) {
    if (streams) end_stream(*known.stream);
    return {};
  }
  // Its reader knows by now that it gets no more.
  if (known.stream && known.stream->is_early && known.stream->progress == Stream::Progress::kEnded)
    return {};
  if (!knows_endpoints()) {
    log_warning("the ranks' endpoints are not known yet", kv("request", value(request.id)));
    return {};
  }
  PeerHold hold{.key = streams ? known.stream->next.key : make_key(request.id),
                .id = request.id,
                .digest = prefix_digest(
                    known.identity,
                    std::span(request.token_ids.get()).first(static_cast<std::size_t>(num_tokens))),
                .num_tokens = num_tokens,
                .blocks = blocks};
  std::string params = params_for(hold.key, num_tokens, blocks);
  next_.holds.push_back(hold);
  held_.emplace(request.id, std::move(hold));
  return {.delay_free = true, .kv_transfer_params = std::move(params)};
}

std::string PeerKVConnector::make_key(RequestId id) const {
  return std::to_string(value(id)) + "-" + random_hex(8);
}

std::string PeerKVConnector::params_for(const std::string& key, std::int32_t num_tokens,
                                        const BlockTable& blocks) const {
  // The address of rank 0, as vLLM's proxies show it.
  const auto first = parse_peer_endpoint(endpoints_.at(0));
  const PeerEndpoint address = first.ok() ? *first : PeerEndpoint{};
  json endpoints = json::array();
  for (const auto& [rank, endpoint] : endpoints_) endpoints.push_back(endpoint);
  const json params = {
      {"do_remote_prefill", true},
      {"do_remote_decode", false},
      {"remote_engine_id", engine_id_},
      {"remote_request_id", key},
      {"remote_block_ids", blocks},
      {"remote_num_tokens", num_tokens},
      {"remote_host", address.host.empty() ? json("localhost") : json(address.host)},
      {"remote_port", address.port},
      {"remote_endpoints", std::move(endpoints)},
      {"tp_size", parallel_.tensor_parallel_size},
      {"pp_size", parallel_.pipeline_parallel_size},
      {"dcp_size", 1},
      {"transfer_mode", "pull"},
  };
  return params.dump();
}

void PeerKVConnector::end_stream(Stream& stream) {
  if (stream.progress == Stream::Progress::kRunning) next_.ended_streams.push_back(stream.next.key);
  stream.progress = Stream::Progress::kEnded;
}

/// Before the step, the workers end the streams whose blocks it may give to others.
void PeerKVConnector::plan_streams(const SchedulerOutput& step) {
  for (const RequestId id : step.preempted_ids) {
    const auto known = requests_.find(id);
    if (known != requests_.end() && known->second.stream) end_stream(*known->second.stream);
  }
  ScheduledRequests all(step, num_groups_);
  while (const auto scheduled = all.next()) {
    const auto known = requests_.find(scheduled->id);
    if (known == requests_.end() || !known->second.stream) continue;
    Stream& stream = *known->second.stream;
    if (stream.progress == Stream::Progress::kEnded || stream.next.key.empty()) continue;
    const std::int32_t num_computed = all.num_computed(*scheduled) + scheduled->num_scheduled;
    const bool is_first = stream.progress == Stream::Progress::kPossible;
    ScheduledRequests::append_new_blocks(*scheduled, stream.next.blocks);
    if (is_first) {
      if (!knows_endpoints()) {
        known->second.stream.reset();
        continue;
      }
      // What one step computes is there when the request has ended.
      stream.is_early &= num_computed <= stream.next.num_tokens;
      if (stream.is_early)
        early_params_.emplace_back(
            scheduled->id, params_for(stream.next.key, stream.next.num_tokens, stream.next.blocks));
    }
    stream.progress = Stream::Progress::kRunning;
    stream.next.num_ready = std::min(num_computed, stream.next.num_tokens);
    next_.streams.push_back(stream.next);
    for (std::vector<BlockId>& blocks : stream.next.blocks) blocks.clear();
  }
}

void PeerKVConnector::on_failed_steps() {
  sends_again_ = true;
  next_.ends_all_streams = true;
  for (auto& [id, request] : requests_)
    if (request.stream) end_stream(*request.stream);
}

std::string PeerKVConnector::build_connector_metadata(const SchedulerOutput& step) {
  plan_streams(step);
  if (std::exchange(sends_again_, false)) {
    next_.holds.clear();
    next_.loads.clear();
    next_.watches.clear();
    for (const auto& [id, hold] : held_) next_.holds.push_back(hold);
    for (const auto& [number, load] : open_loads_) next_.loads.push_back(load);
    for (const auto& [id, request] : requests_)
      if (request.wanted && request.wanted->progress == Progress::kUnused)
        next_.watches.push_back(request.wanted->source);
  }
  next_.wants_endpoint = std::cmp_less(endpoints_.size(), parallel_.world_size());
  if (next_.empty()) return {};
  next_.oldest_load = open_loads_.empty() ? last_load_ + 1 : open_loads_.begin()->first;
  return metadata_text(std::exchange(next_, {}));
}

void PeerKVConnector::update_connector_output(const KVConnectorOutput& output) {
  for (const RequestId id : output.finished_sending) held_.erase(id);
  for (const RequestId id : output.finished_recving) {
    const auto load = std::ranges::find_if(
        open_loads_, [&](const auto& numbered) { return numbered.second.id == id; });
    if (load == open_loads_.end()) continue;
    // The other samples of the request find what is there in the prefix cache.
    for (auto& [other, request] : requests_)
      if (request.wanted && request.wanted->source.key == load->second.source.key)
        request.wanted->progress = Progress::kDone;
    open_loads_.erase(load);
  }
}

// ---- a worker's side ----------------------------------------------------------------------------

PeerKVConnectorWorker::PeerKVConnectorWorker(KVConnectorWorkerContext context,
                                             std::unique_ptr<PeerServer> server, PeerReader reader)
    : context_(std::move(context)), server_(std::move(server)), reader_(std::move(reader)) {}

Result<void> PeerKVConnectorWorker::register_kv_caches(const KVCacheMemory& memory) {
  loaders_.clear();
  loads_.clear();
  ASSIGN_OR_RETURN(pages_, PeerPages::of(memory, reader_.uses_devices));
  device_ = memory.device;
  if (reader_.uses_devices) reader_.device = current_peer_device();
  reader_.origin =
      peer_origin(context_.model_identity, memory.config, context_.parallel.tensor_parallel_size);
  server_->set_pages(pages_, reader_.origin, reader_.device);
  return {};
}

/// On devices other than the CPU a layer may be under way here: it is read when its step is done.
void PeerKVConnectorWorker::save_kv_layer(std::int32_t layer) {
  if (device_->is_host()) server_->finish_layer(layer);
}

void PeerKVConnectorWorker::wait_for_save() {
  if (!device_->synchronize().ok()) return;
  server_->finish_step();
}

PeerLoader& PeerKVConnectorWorker::loader_of(const PeerSource& source) {
  std::string engine;
  for (const std::string& endpoint : source.endpoints) engine += endpoint + '\n';
  std::unique_ptr<PeerLoader>& loader = loaders_[engine];
  if (loader == nullptr) loader = std::make_unique<PeerLoader>(source, reader_, pages_);
  return *loader;
}

void PeerKVConnectorWorker::start_load_kv(const std::string& metadata) {
  PeerOps ops;
  CHECK(wire::decode(metadata.data(), metadata.size(), ops), metadata.size());
  reports_endpoint_ = ops.wants_endpoint;
  for (const std::string& key : ops.ended_streams) server_->end_stream(key);
  if (ops.ends_all_streams) server_->end_all_streams();
  for (const PeerHold& hold : ops.holds) server_->hold(hold);
  for (const PeerStream& stream : ops.streams) server_->begin_stream_step(stream);
  std::erase_if(loads_, [&](std::uint64_t number) { return number < ops.oldest_load; });
  // Of engines that are gone, perhaps.
  constexpr std::size_t kMaxIdle = 16;
  if (loaders_.size() > kMaxIdle)
    std::erase_if(loaders_, [](const auto& loader) { return loader.second->is_idle(); });
  for (const PeerSource& source : ops.watches) loader_of(source).watch(source.key);
  for (PeerLoad& load : ops.loads)
    if (loads_.insert(load.number).second) loader_of(load.source).load(std::move(load));
  for (const PeerSource& source : ops.releases) loader_of(source).release(source.key);
}

KVConnectorOutput PeerKVConnectorWorker::get_finished() {
  KVConnectorOutput output;
  output.finished_sending = server_->take_finished();
  if (std::exchange(reports_endpoint_, false))
    output.endpoints.emplace_back(context_.parallel.rank, to_text(server_->endpoint()));
  std::vector<PeerLoader::Loaded> loaded;
  for (const auto& [engine, loader] : loaders_) loader->take_loaded(loaded);
  for (const PeerLoader::Loaded& load : loaded) {
    output.finished_recving.push_back(load.id);
    if (!load.result.ok()) output.failed_recving.push_back(load.id);
  }
  return output;
}

// ---- factory ------------------------------------------------------------------------------------

Result<std::shared_ptr<KVConnector>> make_peer_connector(const KVConnectorContext& context) {
  RETURN_IF_ERROR(read_peer_options(context.config));
  RETURN_IF_ERROR(check_peer_groups(context.cache));
  return std::shared_ptr<KVConnector>(std::make_shared<PeerKVConnector>(context));
}

Result<std::unique_ptr<KVConnectorWorker>> make_peer_connector_worker(
    const KVConnectorWorkerContext& context) {
  ASSIGN_OR_RETURN(const PeerOptions options, read_peer_options(context.config));
  PeerListen listen{.host = options.host.empty() ? context.host : options.host,
                    .port = static_cast<std::uint16_t>(
                        options.port == 0 ? 0 : options.port + context.parallel.rank),
                    .credentials = context.credentials};
  if (!listen.host.empty() && listen.credentials == nullptr) {
    if (!is_loopback(listen.host))
      return invalid_argument("kv-transfer-config: kv_connector_extra_config: host is " +
                                  listen.host +
                                  ", which needs tls-certificate, tls-key and tls-ca, or "
                                  "cluster-secret-file, or insecure in a trusted network",
                              "kv-transfer-config");
    listen.credentials = std::make_shared<const Credentials>(std::string());
  }
  ASSIGN_OR_RETURN(
      auto server,
      PeerServer::open(listen, {.tensor_rank = context.parallel.tensor_rank(),
                                .tensor_parallel_size = context.parallel.tensor_parallel_size,
                                .lease_s = options.lease_s,
                                .uses_devices = options.uses_devices}));
  PeerReader reader{
      .tensor_rank = context.parallel.tensor_rank(),
      .tensor_parallel_size = context.parallel.tensor_parallel_size,
      .rank = context.parallel.rank,
      .world_size = context.parallel.world_size(),
      .credentials = listen.credentials,
      .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1000)),
      .uses_devices = options.uses_devices};
  return std::unique_ptr<KVConnectorWorker>(
      std::make_unique<PeerKVConnectorWorker>(context, std::move(server), std::move(reader)));
}

}  // namespace troupe
