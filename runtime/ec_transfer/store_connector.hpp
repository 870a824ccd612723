#pragma once
// The two sides of an EC connector whose outputs lie in a store.

#include <condition_variable>
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
#include "runtime/worker/transfer_thread.hpp"

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

/// Seconds after which something counts as a miss.
struct StoreTimeouts {
  double lookup_s = 1;
  double fetch_s = 10;
};

/// Knows of each output that requests have whether the store has it, from the first query until the
/// last of the requests has gone: what it then says of it may be too late, and shows when it is
/// loaded. Where the store is behind a network the workers fetch it first: the next step has that
/// in its metadata, and the output counts as not known until all of them have it.
class StoreConnector final : public ECConnector {
 public:
  StoreConnector(std::shared_ptr<OutputStore> store, ConnectorRole role, StoreTimeouts timeouts);

  [[nodiscard]] std::optional<bool> has_cache_item(const MultiModalFeature& item,
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
    std::int32_t num_rows = 0;
    std::optional<bool> has;         ///< and can be loaded
    bool is_fetching = false;        ///< else it is looked up
    std::optional<double> asked_at;  ///< when a query first found it so
    bool timed_out = false;          ///< `has` is what an answer that is not there counts as
  };
  void take_answers();
  /// What is known of an item is no longer open.
  static void settle(Item& item, bool has) noexcept;

  std::shared_ptr<OutputStore> store_;
  ConnectorRole role_;
  StoreTimeouts timeouts_;
  std::unique_ptr<StoreLookups> lookups_;  ///< null: the store answers at once
  std::unordered_map<std::string, Item> items_;
  std::vector<EncoderLoad> loads_;  ///< of the step that is planned, and fetches
};

class StoreConnectorWorker final : public ECConnectorWorker {
 public:
  StoreConnectorWorker(std::shared_ptr<OutputStore> store, const ConnectorConfig& config);

  Result<void> register_caches(Device& device, EncoderOutputs& outputs) override;
  void start_load_caches(const std::string& metadata) override;
  void save_caches(const std::string& identifier) override;
  [[nodiscard]] ECConnectorOutput get_finished() override;

 private:
  struct Save {
    std::string identifier;
    OutputShape shape;
    std::vector<float> values;
  };
  struct Fetched {
    std::string identifier;
    bool is_there = false;
  };
  struct Fetch {
    std::string identifier;
    OutputShape shape;
  };
  using Saves = TransferThread<Save, std::string>;
  using Fetches = TransferThread<Fetch, Fetched>;

  /// Errors: those of the store; kInternal, there is no room.
  Result<void> load(const EncoderLoad& wanted);

  std::shared_ptr<OutputStore> store_;
  ConnectorRole role_;
  Device* device_ = nullptr;
  EncoderOutputs* outputs_ = nullptr;
  ECConnectorOutput report_;
  // Last: they use the others.
  std::unique_ptr<Saves> saves_;      ///< null: the store saves at once, or nothing is saved
  std::unique_ptr<Fetches> fetches_;  ///< null: what the store has can be loaded
};

}  // namespace troupe
