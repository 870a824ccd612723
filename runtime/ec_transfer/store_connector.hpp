#pragma once
// The two sides of an EC connector whose outputs lie in a store.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/config/connector_config.hpp"
#include "runtime/ec_transfer/encoder_loads.hpp"
#include "runtime/ec_transfer/output_store.hpp"
#include "runtime/scheduler/ec_connector.hpp"
#include "runtime/worker/ec_connector_worker.hpp"

namespace troupe {

/// Asks a store on a thread of its own what it has. Used by one thread.
class StoreLookups {
 public:
  explicit StoreLookups(std::shared_ptr<OutputStore> store);
  /// Ends with the lookup that is under way.
  ~StoreLookups();
  StoreLookups(const StoreLookups&) = delete;
  StoreLookups& operator=(const StoreLookups&) = delete;

  void ask(std::string identifier);
  /// Since the last call.
  [[nodiscard]] std::vector<std::pair<std::string, bool>> take_answers();

 private:
  void run();

  std::shared_ptr<OutputStore> store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> questions_;
  std::vector<std::pair<std::string, bool>> answers_;
  bool ends_ = false;
  std::thread thread_;
};

/// Remembers for each output of requests whether the store has it, from the first query until the
/// last of the requests has finished. The answer may be outdated, which is detected when it is
/// loaded.
class StoreConnector final : public ECConnector {
 public:
  StoreConnector(std::shared_ptr<OutputStore> store, ConnectorRole role, double lookup_timeout_s);

  [[nodiscard]] std::optional<bool> has_cache_item(const std::string& identifier,
                                                   double now) override;
  void update_state_after_alloc(const RequestState& request,
                                const MultiModalFeature& item) override;
  [[nodiscard]] std::string build_connector_meta(const SchedulerOutput& step) override;
  void update_connector_output(const ECConnectorOutput& output) override;
  /// {"<identifier>": {"num_encoder_tokens": N}}, of a producer's items.
  [[nodiscard]] std::string transfer_params(const RequestState& request) const override;
  void release(const std::string& identifier) override { items_.erase(identifier); }

  /// That something is known, or asked, of.
  [[nodiscard]] std::size_t num_items() const noexcept { return items_.size(); }

 private:
  struct Item {
    std::optional<bool> has;
    double asked_at = 0;
    bool timed_out = false;  ///< `has` is what an answer that is not there counts as
  };
  void take_answers();

  std::shared_ptr<OutputStore> store_;
  ConnectorRole role_;
  double lookup_timeout_s_;
  std::unique_ptr<StoreLookups> lookups_;  ///< null: the store answers at once
  std::unordered_map<std::string, Item> items_;
  std::vector<EncoderLoad> loads_;  ///< of the step that is planned
};

/// Saves outputs into a store, on a thread of its own. What waits for it takes at most `max_bytes`,
/// or one output. Used by one thread.
class StoreSaves {
 public:
  StoreSaves(std::shared_ptr<OutputStore> store, std::size_t max_bytes);
  /// Saves what is waiting.
  ~StoreSaves();
  StoreSaves(const StoreSaves&) = delete;
  StoreSaves& operator=(const StoreSaves&) = delete;

  /// Waits until there is room. Pre: values.size() == shape.num_values().
  void add(std::string identifier, const OutputShape& shape, std::vector<float> values);
  /// Of those that have been saved since the last call.
  [[nodiscard]] std::vector<std::string> take_saved();

 private:
  struct Output {
    std::string identifier;
    OutputShape shape;
    std::vector<float> values;
  };
  void run();

  std::shared_ptr<OutputStore> store_;
  std::size_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Output> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::vector<std::string> saved_;
  bool ends_ = false;
  std::thread thread_;
};

class StoreConnectorWorker final : public ECConnectorWorker {
 public:
  StoreConnectorWorker(std::shared_ptr<OutputStore> store, const ConnectorConfig& config);

  Result<void> register_caches(Device& device, EncoderOutputs& outputs) override;
  void start_load_caches(const std::string& metadata) override;
  void save_caches(const std::string& identifier) override;
  [[nodiscard]] ECConnectorOutput get_finished() override;

 private:
  /// Errors: those of the store; kInternal, there is no room.
  Result<void> load(const EncoderLoad& wanted);

  std::shared_ptr<OutputStore> store_;
  ConnectorRole role_;
  std::unique_ptr<StoreSaves> saves_;  ///< null: the store saves at once, or nothing is saved
  Device* device_ = nullptr;
  EncoderOutputs* outputs_ = nullptr;
  ECConnectorOutput report_;
};

}  // namespace troupe
