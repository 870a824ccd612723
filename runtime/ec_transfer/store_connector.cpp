#include "runtime/ec_transfer/store_connector.hpp"

#include <algorithm>

#include "messages/encoder_input.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/json.hpp"
#include "runtime/base/log.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/ec_transfer/connectors.hpp"

namespace troupe {
namespace {

bool loads(ConnectorRole role) { return role != ConnectorRole::kProducer; }
bool saves(ConnectorRole role) { return role != ConnectorRole::kConsumer; }

/// Calls f(number of the first row, first place, how many) for each run of neighbouring places.
template <class Function>
void for_each_run(std::span<const std::int32_t> places, Function&& f) {
  for (std::size_t first = 0; first < places.size();) {
    std::size_t end = first + 1;
    while (end < places.size() && places[end] == places[end - 1] + 1) ++end;
    f(first, places[first], end - first);
    first = end;
  }
}

Result<void> save_output(OutputStore& store, const std::string& identifier,
                         const OutputShape& shape, std::span<const float> values) {
  const auto saved = store.save(identifier, shape, values);
  if (saved.ok())
    log_debug("encoder output saved", kv("identifier", identifier), kv("rows", shape.num_rows));
  else
    log_warning("encoder output not saved", kv("identifier", identifier),
                kv("error", saved.error().message));
  return saved;
}

}  // namespace

// ---- lookups ------------------------------------------------------------------------------------

StoreLookups::StoreLookups(std::shared_ptr<OutputStore> store)
    : store_(std::move(store)), thread_([this] { run(); }) {}

StoreLookups::~StoreLookups() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StoreLookups::ask(std::string identifier) {
  {
    const std::lock_guard lock(mutex_);
    questions_.push_back(std::move(identifier));
  }
  changed_.notify_one();
}

std::vector<std::pair<std::string, bool>> StoreLookups::take_answers() {
  const std::lock_guard lock(mutex_);
  return std::exchange(answers_, {});
}

void StoreLookups::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !questions_.empty(); });
    if (ends_) return;
    std::string identifier = std::move(questions_.front());
    questions_.pop_front();
    lock.unlock();
    const bool has = store_->has(identifier);
    lock.lock();
    answers_.emplace_back(std::move(identifier), has);
  }
}

// ---- the Scheduler's side -----------------------------------------------------------------------

StoreConnector::StoreConnector(std::shared_ptr<OutputStore> store, ConnectorRole role,
                               StoreTimeouts timeouts)
    : store_(std::move(store)), role_(role), timeouts_(timeouts) {
  if (loads(role_) && !store_->is_immediate()) lookups_ = std::make_unique<StoreLookups>(store_);
}

void StoreConnector::take_answers() {
  if (lookups_ == nullptr) return;
  for (const auto& [identifier, has] : lookups_->take_answers()) {
    const auto known = items_.find(identifier);
    if (known == items_.end() || (known->second.has && !known->second.timed_out)) continue;
    if (has && store_->needs_fetch()) {
      const std::int32_t num_rows = known->second.num_rows;
      known->second = {.num_rows = num_rows, .is_fetching = true};
      loads_.push_back({identifier, num_rows, /*is_fetch=*/true});
    } else {
      settle(known->second, has);
    }
  }
}

void StoreConnector::settle(Item& item, bool has) noexcept {
  item.has = has;
  item.is_fetching = false;
  item.timed_out = false;
}

std::optional<bool> StoreConnector::has_cache_item(const MultiModalFeature& wanted, double now) {
  if (!loads(role_)) return false;
  take_answers();
  const std::string& identifier = wanted.identifier;
  const auto [place, is_new] = items_.try_emplace(identifier);
  Item& item = place->second;
  if (is_new) {
    item.num_rows = num_embeds(wanted);
    if (lookups_ != nullptr)
      lookups_->ask(identifier);
    else
      item.has = store_->has(identifier);
  }
  if (!item.asked_at) item.asked_at = now;
  const double timeout_s = item.is_fetching ? timeouts_.fetch_s : timeouts_.lookup_s;
  if (!item.has && now - *item.asked_at >= timeout_s) {
    log_warning("the EC connector's store gives no answer: the item is encoded",
                kv("identifier", identifier), kv("seconds", now - *item.asked_at));
    item.has = false;
    item.timed_out = true;
  }
  return item.has;
}

void StoreConnector::update_state_after_alloc(const RequestState&, const MultiModalFeature& item) {
  loads_.push_back({item.identifier, num_embeds(item)});
}

std::string StoreConnector::build_connector_meta(const SchedulerOutput&) {
  take_answers();
  return pack_encoder_loads(std::exchange(loads_, {}));
}

void StoreConnector::update_connector_output(const ECConnectorOutput& output) {
  take_answers();
  const auto know = [this](const std::string& identifier, bool has) {
    const auto known = items_.find(identifier);
    if (known != items_.end()) settle(known->second, has);
  };
  for (const std::string& identifier : output.fetched) know(identifier, true);
  for (const std::string& identifier : output.failed) know(identifier, false);
  for (const std::string& identifier : output.saved) know(identifier, true);
}

std::string StoreConnector::transfer_params(const RequestState& request) const {
  if (!saves(role_) || request.mm_features.empty()) return {};
  nlohmann::ordered_json params;
  for (const MultiModalFeature& item : request.mm_features)
    params[item.identifier] = {{"num_encoder_tokens", num_embeds(item)}};
  return params.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// ---- the worker's side --------------------------------------------------------------------------

StoreConnectorWorker::StoreConnectorWorker(std::shared_ptr<OutputStore> store,
                                           const ConnectorConfig& config)
    : store_(std::move(store)), role_(config.role) {
  if (saves(role_) && !store_->is_immediate())
    saves_ = std::make_unique<Saves>(
        [store = store_](Save& save) -> std::optional<std::string> {
          if (!save_output(*store, save.identifier, save.shape, save.values).ok())
            return std::nullopt;
          return std::move(save.identifier);
        },
        [](const Save&) { return false; }, static_cast<std::size_t>(config.buffer_size));
  if (loads(role_) && store_->needs_fetch())
    fetches_ = std::make_unique<Fetches>(
        [store = store_](Fetch& wanted) -> std::optional<Fetched> {
          const auto fetched = store->fetch(wanted.identifier, wanted.shape);
          if (!fetched.ok())
            log_warning("encoder output not fetched: the item is encoded",
                        kv("identifier", wanted.identifier), kv("error", fetched.error().message));
          return Fetched{std::move(wanted.identifier), fetched.ok()};
        },
        [](const Fetch&) { return true; });
}

Result<void> StoreConnectorWorker::register_caches(Device& device, EncoderOutputs& outputs) {
  device_ = &device;
  outputs_ = &outputs;
  return {};
}

Result<void> StoreConnectorWorker::load(const EncoderLoad& wanted) {
  const Matrix memory = outputs_->memory();
  const OutputShape shape{.num_rows = wanted.num_rows, .hidden_size = memory.num_cols};
  ASSIGN_OR_RETURN(const StoredOutput stored, store_->load(wanted.identifier, shape));
  CHECK(stored.values.size() == shape.num_values(), stored.values.size(), shape.num_values());
  const std::span<const std::int32_t> places = outputs_->add(wanted.identifier, wanted.num_rows);
  if (places.empty())
    return Error{ErrorCode::kInternal, "it has " + std::to_string(wanted.num_rows) +
                                           " rows, of the " + std::to_string(memory.num_rows) +
                                           " of the encoder cache " +
                                           std::to_string(outputs_->num_free_rows()) + " are free"};
  const auto row_values = static_cast<std::size_t>(shape.hidden_size);
  for_each_run(places, [&](std::size_t first, std::int32_t place, std::size_t count) {
    device_->copy_to_device(memory.row(place), stored.values.data() + first * row_values,
                            count * row_values * sizeof(float));
  });
  return {};
}

void StoreConnectorWorker::start_load_caches(const std::string& metadata) {
  CHECK(outputs_ != nullptr);
  const auto wanted = unpack_encoder_loads(metadata);
  CHECK(wanted.has_value(), metadata.size());
  for (const EncoderLoad& output : *wanted) {
    if (output.is_fetch) {
      if (fetches_ != nullptr)
        fetches_->add({output.identifier,
                       {.num_rows = output.num_rows, .hidden_size = outputs_->memory().num_cols}});
      else
        report_.fetched.push_back(output.identifier);
      continue;
    }
    if (outputs_->has(output.identifier)) continue;
    const auto loaded = load(output);
    if (loaded.ok()) {
      log_debug("encoder output loaded", kv("identifier", output.identifier),
                kv("rows", output.num_rows));
      report_.loaded.push_back(output.identifier);
      continue;
    }
    log_warning("encoder output not loaded: the item is encoded",
                kv("identifier", output.identifier), kv("error", loaded.error().message));
    report_.failed.push_back(output.identifier);
  }
}

void StoreConnectorWorker::save_caches(const std::string& identifier) {
  if (!saves(role_)) return;
  CHECK(outputs_ != nullptr);
  const Matrix memory = outputs_->memory();
  const std::span<const std::int32_t> places = outputs_->rows_of(identifier);
  const OutputShape shape{.num_rows = std::ssize(places), .hidden_size = memory.num_cols};
  const auto row_values = static_cast<std::size_t>(shape.hidden_size);
  std::vector<float> values(shape.num_values());
  for_each_run(places, [&](std::size_t first, std::int32_t place, std::size_t count) {
    device_->copy_to_host(values.data() + first * row_values, memory.row(place),
                          count * row_values * sizeof(float));
  });
  // The step itself reports errors of the device.
  if (!device_->synchronize().ok()) return;
  if (saves_ != nullptr)
    saves_->add({identifier, shape, std::move(values)}, shape.num_bytes());
  else if (save_output(*store_, identifier, shape, values).ok())
    report_.saved.push_back(identifier);
}

ECConnectorOutput StoreConnectorWorker::get_finished() {
  ECConnectorOutput report = std::exchange(report_, {});
  if (saves_ != nullptr) report.saved = saves_->take_done();
  if (fetches_ != nullptr)
    for (Fetched& fetched : fetches_->take_done()) {
      if (!fetched.is_there) report.failed.push_back(fetched.identifier);
      report.fetched.push_back(std::move(fetched.identifier));
    }
  return report;
}

// ---- both ---------------------------------------------------------------------------------------

Result<std::shared_ptr<ECConnector>> make_store_connector(OpenOutputStore open,
                                                          const ECConnectorContext& context) {
  ASSIGN_OR_RETURN(std::shared_ptr<OutputStore> store, open(context));
  StoreTimeouts timeouts;
  ASSIGN_OR_RETURN(timeouts.lookup_s, ConnectorExtraConfig(ConnectorKind::kEC, context.config)
                                          .take_seconds(kLookupTimeoutKey, timeouts.lookup_s));
  return std::shared_ptr<ECConnector>(
      std::make_shared<StoreConnector>(std::move(store), context.config.role, timeouts));
}

Result<std::unique_ptr<ECConnectorWorker>> make_store_connector_worker(
    OpenOutputStore open, const ECConnectorContext& context) {
  ASSIGN_OR_RETURN(std::shared_ptr<OutputStore> store, open(context));
  return std::unique_ptr<ECConnectorWorker>(
      std::make_unique<StoreConnectorWorker>(std::move(store), context.config));
}

}  // namespace troupe
