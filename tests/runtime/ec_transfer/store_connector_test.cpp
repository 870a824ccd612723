// The two sides of a connector of a store.

#include "runtime/ec_transfer/store_connector.hpp"

#include <boost/test/unit_test.hpp>
#include <future>
#include <map>

namespace troupe {
namespace {

/// Answers when the test allows it.
class SlowStore final : public OutputStore {
 public:
  bool has(const std::string& identifier) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return answers_.contains(identifier); });
    return answers_.at(identifier);
  }
  Result<StoredOutput> load(const std::string& identifier, const OutputShape& shape) override {
    const std::lock_guard lock(mutex_);
    const auto found = outputs_.find(identifier);
    if (found == outputs_.end()) return Error{ErrorCode::kNotFound, "it is not there"};
    if (found->second.size() != shape.num_values())
      return Error{ErrorCode::kCorrupt, "it has another size"};
    return StoredOutput{nullptr, found->second};
  }
  Result<void> save(const std::string& identifier, const OutputShape&,
                    std::span<const float> values) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return saves_; });
    if (identifier == "bad") return Error{ErrorCode::kIo, "the disk is full"};
    outputs_[identifier].assign(values.begin(), values.end());
    return {};
  }
  [[nodiscard]] bool needs_fetch() const noexcept override { return is_remote; }
  /// As save() of ones, once it may.
  Result<void> fetch(const std::string& identifier, const OutputShape& shape) override {
    return save(identifier, shape, std::vector<float>(shape.num_values(), 1));
  }
  void answer(const std::string& identifier, bool has) {
    const std::lock_guard lock(mutex_);
    answers_[identifier] = has;
    changed_.notify_all();
  }
  void let_save(bool saves) {
    const std::lock_guard lock(mutex_);
    saves_ = saves;
    changed_.notify_all();
  }
  std::size_t num_outputs() {
    const std::lock_guard lock(mutex_);
    return outputs_.size();
  }
  bool is_remote = false;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, bool> answers_;
  std::map<std::string, std::vector<float>> outputs_;
  bool saves_ = true;
};

std::optional<bool> has(ECConnector& connector, const std::string& identifier, double now) {
  return connector.has_cache_item({.identifier = identifier, .length = 4}, now);
}

/// Asks until it is known.
bool wait_for(ECConnector& connector, const std::string& identifier) {
  while (true) {
    if (const auto known = has(connector, identifier, 0)) return *known;
    std::this_thread::yield();
  }
}

BOOST_AUTO_TEST_CASE(a_lookup_is_unknown_until_the_store_answers_and_a_miss_if_it_does_not) {
  const auto store = std::make_shared<SlowStore>();
  StoreConnector connector(store, ConnectorRole::kBoth, {.lookup_s = 2});
  BOOST_TEST(!has(connector, "a", 10).has_value());
  BOOST_TEST(!has(connector, "b", 11).has_value());
  BOOST_TEST(!has(connector, "a", 11.9).has_value());
  BOOST_TEST((has(connector, "a", 12) == std::optional(false)));
  BOOST_TEST(!has(connector, "b", 12).has_value());
  store->answer("a", true);
  store->answer("b", true);
  BOOST_TEST(wait_for(connector, "b"));
  // The late answer counts.
  BOOST_TEST((has(connector, "a", 12) == std::optional(true)));
  store->answer("c", false);
  BOOST_TEST(!wait_for(connector, "c"));
  // Once the last request has gone it is asked for again.
  connector.release("a");
  store->answer("a", false);
  BOOST_TEST(!wait_for(connector, "a"));
  BOOST_TEST(connector.num_items() == 3u);
  for (const char* identifier : {"a", "b", "c"}) connector.release(identifier);
  BOOST_TEST(connector.num_items() == 0u);
}

BOOST_AUTO_TEST_CASE(what_the_workers_report_is_known_at_once) {
  const auto store = std::make_shared<SlowStore>();
  store->answer("a", true);
  store->answer("b", false);
  StoreConnector connector(store, ConnectorRole::kBoth, {});
  BOOST_TEST(wait_for(connector, "a"));
  BOOST_TEST(!wait_for(connector, "b"));
  connector.update_connector_output({.saved = {"b", "unknown"}, .failed = {"a"}});
  BOOST_TEST((has(connector, "a", 0) == std::optional(false)));
  BOOST_TEST((has(connector, "b", 0) == std::optional(true)));
  BOOST_TEST(connector.num_items() == 2u);
  // Saved after it could not be loaded, in the same step.
  connector.update_connector_output({.saved = {"a"}, .failed = {"a"}});
  BOOST_TEST((has(connector, "a", 0) == std::optional(true)));
}

BOOST_AUTO_TEST_CASE(a_producer_asks_for_nothing) {
  StoreConnector connector(std::make_shared<SlowStore>(), ConnectorRole::kProducer, {});
  BOOST_TEST((has(connector, "a", 0) == std::optional(false)));
  BOOST_TEST(connector.num_items() == 0u);
}

BOOST_AUTO_TEST_CASE(a_step_s_loads_go_to_the_workers_with_their_sizes) {
  StoreConnector connector(std::make_shared<SlowStore>(), ConnectorRole::kBoth, {});
  const RequestState request{EngineCoreRequest{}};
  BOOST_TEST(connector.build_connector_meta({}).empty());
  connector.update_state_after_alloc(request, {.identifier = "a b", .length = 4});
  connector.update_state_after_alloc(request,
                                     {.identifier = "", .length = 4, .is_embed = {0, 1, 1, 0}});
  const std::string metadata = connector.build_connector_meta({});
  BOOST_TEST((unpack_encoder_loads(metadata) ==
              std::optional(std::vector<EncoderLoad>{{"a b", 4}, {"", 2}})));
  BOOST_TEST(connector.build_connector_meta({}).empty());
  BOOST_TEST(unpack_encoder_loads("")->empty());
  for (const char* text : {"1", "1 ", "1 0 ", "1 0 2 a", "0 0 1 a", "-1 0 1 a", "x 0 1 a",
                           "1 0 1 a1", "1 0 -1 a", "1 2 1 a", "1 -1 1 a"})
    BOOST_TEST(!unpack_encoder_loads(text).has_value(), text);
}

constexpr std::int64_t kHidden = 3;

/// A worker's side with room for eight rows.
struct Side {
  explicit Side(const std::shared_ptr<OutputStore>& store,
                ConnectorRole role = ConnectorRole::kBoth, std::int64_t buffer_size = 1 << 20)
      : worker(store, {.connector = "C", .role = role, .buffer_size = buffer_size}) {
    BOOST_REQUIRE(worker.register_caches(*device, outputs).ok());
  }
  /// Rows with numbers from `first` on.
  void encode(const std::string& identifier, std::int64_t num_rows, float first) {
    const auto places = outputs.add(identifier, num_rows);
    BOOST_REQUIRE(std::ssize(places) == num_rows);
    for (const std::int32_t place : places)
      for (std::int64_t i = 0; i < kHidden; ++i) outputs.memory().row(place)[i] = first++;
  }
  [[nodiscard]] std::vector<float> values(const std::string& identifier) const {
    std::vector<float> found;
    for (const std::int32_t place : outputs.rows_of(identifier))
      found.insert(found.end(), outputs.memory().row(place), outputs.memory().row(place) + kHidden);
    return found;
  }
  ECConnectorOutput wait_for_saves(std::size_t count) {
    ECConnectorOutput all;
    while (all.saved.size() < count) {
      for (std::string& identifier : worker.get_finished().saved)
        all.saved.push_back(std::move(identifier));
      std::this_thread::yield();
    }
    return all;
  }
  std::unique_ptr<Device> device = Device::create({.name = "cpu", .num_threads = 1}).value();
  EncoderOutputs outputs = EncoderOutputs::create(*device, 8, kHidden).value();
  StoreConnectorWorker worker;
};

BOOST_AUTO_TEST_CASE(rows_travel_wherever_they_lie_and_what_fails_leaves_no_trace) {
  const auto store = std::make_shared<SlowStore>();
  Side from(store);
  from.encode("x", 2, 0);
  from.encode("y", 2, 0);
  from.encode("z", 2, 0);
  from.outputs.remove("y");
  from.encode("a", 4, 100);  // in two pieces
  from.worker.save_caches("a");
  BOOST_TEST((from.wait_for_saves(1).saved == std::vector<std::string>{"a"}));
  Side to(store);
  to.encode("first", 1, 0);
  to.encode("second", 1, 0);
  to.outputs.remove("first");
  to.worker.start_load_caches(
      pack_encoder_loads({{"a", 4}, {"missing", 2}, {"a", 4}, {"second", 1}}));
  const ECConnectorOutput report = to.worker.get_finished();
  BOOST_TEST((report.loaded == std::vector<std::string>{"a"}));
  BOOST_TEST((report.failed == std::vector<std::string>{"missing"}));
  BOOST_TEST((to.values("a") == from.values("a")));
  BOOST_TEST(!to.outputs.has("missing"));
  BOOST_TEST(to.worker.get_finished().empty());
  // Of another size, and without room.
  Side full(store);
  full.encode("f", 6, 0);
  full.worker.start_load_caches(pack_encoder_loads({{"a", 2}}));
  full.worker.start_load_caches(pack_encoder_loads({{"a", 4}}));
  BOOST_TEST((full.worker.get_finished().failed == std::vector<std::string>{"a", "a"}));
  BOOST_TEST(!full.outputs.has("a"));
  BOOST_TEST(full.outputs.num_free_rows() == 2);
}

BOOST_AUTO_TEST_CASE(saves_wait_on_their_own_thread_within_the_buffer_and_are_done_in_the_end) {
  const auto store = std::make_shared<SlowStore>();
  store->let_save(false);
  {
    Side side(store, ConnectorRole::kProducer, 2 * kHidden * 4);
    for (const char* identifier : {"a", "b", "bad"}) side.encode(identifier, 1, 7);
    side.worker.save_caches("a");
    side.worker.save_caches("b");
    BOOST_TEST(side.worker.get_finished().empty());
    // A third one has to wait for one of them.
    auto third = std::async(std::launch::async, [&] { side.worker.save_caches("bad"); });
    BOOST_TEST((third.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout));
    side.outputs.clear();  // what is saved has been copied
    store->let_save(true);
    third.get();
  }
  BOOST_TEST(store->num_outputs() == 2u);  // the bad one is none
}

BOOST_AUTO_TEST_CASE(outputs_behind_a_network_are_fetched_while_steps_go_on) {
  const auto store = std::make_shared<SlowStore>();
  store->is_remote = true;
  store->let_save(false);
  for (const char* identifier : {"a", "bad", "late"}) store->answer(identifier, true);
  StoreConnector connector(store, ConnectorRole::kBoth, {.fetch_s = 5});
  std::string metadata;
  std::size_t num_fetches = 0;
  for (const char* identifier : {"a", "bad", "late"}) {
    ++num_fetches;
    // It is found, which is not yet enough.
    while (unpack_encoder_loads(metadata)->size() < num_fetches) {
      BOOST_REQUIRE(!has(connector, identifier, 0).has_value());
      metadata += connector.build_connector_meta({});
    }
  }
  BOOST_TEST((unpack_encoder_loads(metadata) ==
              std::optional(
                  std::vector<EncoderLoad>{{"a", 4, true}, {"bad", 4, true}, {"late", 4, true}})));
  {
    Side side(store);
    // The step goes on, and so does the next one.
    side.worker.start_load_caches(metadata);
    BOOST_TEST(side.worker.get_finished().empty());
    // The fetch begins to count with the first query that finds it under way.
    for (const char* identifier : {"a", "bad", "late"})
      BOOST_TEST(!has(connector, identifier, 0).has_value());
    BOOST_TEST(!has(connector, "a", 4.9).has_value());
    store->let_save(true);
    ECConnectorOutput report;
    while (report.fetched.size() < 3) {
      const ECConnectorOutput next = side.worker.get_finished();
      report.fetched.insert(report.fetched.end(), next.fetched.begin(), next.fetched.end());
      report.failed.insert(report.failed.end(), next.failed.begin(), next.failed.end());
      std::this_thread::yield();
    }
    BOOST_TEST((report.fetched == std::vector<std::string>{"a", "bad", "late"}));
    BOOST_TEST((report.failed == std::vector<std::string>{"bad"}));
    // Without a report it is a miss at last.
    BOOST_TEST((has(connector, "late", 5) == std::optional(false)));
    connector.update_connector_output(report);
    BOOST_TEST((has(connector, "a", 5) == std::optional(true)));
    BOOST_TEST((has(connector, "bad", 5) == std::optional(false)));
    BOOST_TEST((has(connector, "late", 5) == std::optional(true)));
    side.worker.start_load_caches(pack_encoder_loads({{"a", 2}}));
    BOOST_TEST((side.worker.get_finished().failed == std::vector<std::string>{"a"}));
    side.worker.start_load_caches(pack_encoder_loads({{"a", 4}}));
    BOOST_TEST((side.worker.get_finished().loaded == std::vector<std::string>{"a"}));
    BOOST_TEST((side.values("a") == std::vector<float>(4 * kHidden, 1)));
    // What waits at the end is dropped.
    store->let_save(false);
    side.worker.start_load_caches(pack_encoder_loads({{"b", 1, true}, {"c", 1, true}}));
    store->let_save(true);
  }
  BOOST_TEST(store->num_outputs() <= 4u);
}

BOOST_AUTO_TEST_CASE(a_consumer_saves_nothing) {
  const auto store = std::make_shared<SlowStore>();
  {
    Side side(store, ConnectorRole::kConsumer);
    side.encode("a", 1, 7);
    side.worker.save_caches("a");
  }
  BOOST_TEST(store->num_outputs() == 0u);
}

}  // namespace
}  // namespace troupe
