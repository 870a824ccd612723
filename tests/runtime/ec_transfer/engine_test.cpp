// Whole engines without actors: what one encodes and saves, another one loads and does not encode.
// Tokens and log-probabilities are the same, bit for bit, as without a connector.

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <thread>

#include "messages/encoder_input.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/ec_transfer/factory.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/scheduler/scheduler.hpp"
#include "tests/runtime/ec_transfer/temporary_folder.hpp"
#include "tests/support/local_ports.hpp"
#include "tests/support/replay_models_driver.hpp"
#include "tests/support/test_device.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int32_t kBlockSize = 16;
constexpr std::int32_t kMaxTokens = 16;
constexpr std::int32_t kNumBlocks = 200;
const std::string kModels = TROUPE_GOLDEN_DIR "/models/";

/// The golden prompts with one or more images.
std::vector<EngineCoreRequest> image_requests() {
  const json golden = json::parse(read_file(kModels + "goldens/gemma3/golden.json").value());
  const SafetensorsFile arrays =
      SafetensorsFile::open(kModels + "goldens/gemma3/golden.safetensors").value();
  std::vector<EngineCoreRequest> requests;
  for (const json& entry : golden.at("cases")) {
    const auto places = entry.at("image_token_positions").get<std::vector<std::int32_t>>();
    if (places.empty()) continue;
    EngineCoreRequest& request = requests.emplace_back();
    request.id = RequestId{requests.size()};
    request.prompt_token_ids.edit() = entry.at("prompt_token_ids").get<std::vector<TokenId>>();
    request.params.temperature = 0;
    request.params.ignore_eos = true;
    request.params.max_tokens = 6;
    request.params.logprobs = 2;
    const std::size_t num_images = entry.at("images").size();
    const std::size_t size = places.size() / num_images;
    for (std::size_t i = 0; i < num_images; ++i) {
      const std::string name = entry["images"][i];
      const json& images = golden.at("images");
      const auto image =
          std::ranges::find_if(images, [&](const json& one) { return one.at("file") == name; });
      const auto pixels =
          arrays.find("pixel_values." + std::to_string(image - images.begin()))->elements<float>();
      const std::int64_t shape[] = {3, 56, 56};
      request.mm_features.push_back(
          {.modality = "image",
           .identifier = "image-" + std::to_string(image - images.begin()),
           .offset = places[i * size],
           .length = static_cast<std::int32_t>(size),
           .data = pack_encoder_input(shape, pixels)});
    }
  }
  return requests;
}
constexpr std::int64_t kNumImages = 3;

struct Answer {
  std::vector<TokenId> tokens;
  LogprobRows logprobs;
  bool operator==(const Answer&) const = default;
};

/// What append() of two LogprobRows would do.
void append_rows(LogprobRows& to, const LogprobRows& from) {
  to.row_sizes.insert(to.row_sizes.end(), from.row_sizes.begin(), from.row_sizes.end());
  to.token_ids.insert(to.token_ids.end(), from.token_ids.begin(), from.token_ids.end());
  to.logprobs.insert(to.logprobs.end(), from.logprobs.begin(), from.logprobs.end());
  to.ranks.insert(to.ranks.end(), from.ranks.begin(), from.ranks.end());
}

class TransferEngine {
 public:
  /// `transfer`: JSON; empty: no connector.
  explicit TransferEngine(const std::string& transfer, const std::string& device = "cpu",
                          bool encode_ahead = false) {
    runner_ = ModelRunner::load({.model = kModels + "models/gemma3",
                                 .dtype = "float32",
                                 .device = device,
                                 .threads = 1,
                                 .block_size = kBlockSize,
                                 .max_num_seqs = 4,
                                 .max_num_batched_tokens = kMaxTokens,
                                 .encoder_cache_size = 12},
                                {})
                  .value();
    const ModelLoaded loaded = runner_->describe();
    const KVCacheConfig cache = plan_cache(loaded.layer_specs(), kNumBlocks);
    BOOST_REQUIRE(runner_->initialize_kv_cache(cache).ok());
    const ConnectorConfig config = parse_connector_config(ConnectorKind::kEC, transfer).value();
    if (config.is_enabled()) {
      const ECConnectorKind* const kind = find_ec_connector(config).value();
      connector_ = kind->create({config, loaded.encoder_key}).value();
      BOOST_REQUIRE(
          runner_->set_ec_connector(kind->create_worker({config, loaded.encoder_key}).value())
              .ok());
    }
    KVCacheSettings settings;
    settings.groups = cache.groups;
    settings.num_blocks = kNumBlocks;
    settings.max_model_len = loaded.max_model_len;
    settings.max_in_flight_tokens = kMaxTokens;
    kv_cache_.emplace(settings);
    kv_port_.emplace(*kv_cache_);
    encoder_cache_.emplace(
        EncoderCacheSettings{.capacity = 12, .whole_runs = loaded.two_way_items});
    encoder_port_.emplace(*encoder_cache_);
    SchedulerConfig scheduling{.max_model_len = loaded.max_model_len,
                               .num_blocks = kNumBlocks,
                               .max_num_seqs = 4,
                               .max_num_batched_tokens = kMaxTokens};
    scheduling.max_encoder_embeds = 8;
    scheduling.encode_ahead = encode_ahead;
    scheduler_.emplace(scheduling, *kv_port_, &*encoder_port_, nullptr, connector_.get());
  }

  std::vector<Answer> run(const std::vector<EngineCoreRequest>& requests) {
    std::vector<Answer> answers(requests.size());
    for (EngineCoreRequest request : requests) {
      request.id = RequestId{first_id_ + value(request.id)};
      BOOST_REQUIRE(scheduler_->add_request(std::move(request), 0).ok());
    }
    int num_idle_steps = 0;
    while (scheduler_->has_requests()) {
      const SchedulerOutput step = run_now(scheduler_->schedule(0));
      auto result = runner_->execute(step);
      if (!result.ok()) BOOST_FAIL(result.error().message);
      append(totals_.loaded, result->ec_connector.loaded);
      append(totals_.failed, result->ec_connector.failed);
      append(totals_.saved, result->ec_connector.saved);
      num_shared_steps_ += step.encode_ahead && !step.scheduled_ids.empty();
      if (step.scheduled_ids.empty() && !step.encode_ahead) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        BOOST_REQUIRE(++num_idle_steps < 5000);
      }
      const EngineCoreOutputs outputs =
          run_now(scheduler_->update_from_output(step, *std::move(result), 0));
      for (const EngineCoreOutput& output : outputs.outputs) {
        BOOST_REQUIRE(output.finish_reason != FinishReason::kError);
        Answer& answer = answers.at(value(output.id) - first_id_ - 1);
        append(answer.tokens, output.new_token_ids);
        append_rows(answer.logprobs, output.new_logprobs);
      }
      if (!outputs.stats) continue;
      num_hits_ += outputs.stats->encoder_transfer.num_hits;
    }
    first_id_ += requests.size();
    return answers;
  }
  /// Steps until so many outputs have been saved.
  void wait_for_saves(std::size_t count) {
    while (totals_.saved.size() < count) {
      const SchedulerOutput step = run_now(scheduler_->schedule(0));
      auto result = runner_->execute(step).value();
      append(totals_.saved, result.ec_connector.saved);
      static_cast<void>(run_now(scheduler_->update_from_output(step, std::move(result), 0)));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  /// As after a failed step: nothing is left in the encoder cache.
  void reset() {
    scheduler_->reset_encoder_cache();
    BOOST_REQUIRE(run_now(scheduler_->reset_prefix_cache(false, 0)));
  }

  [[nodiscard]] std::int64_t num_encoded() const { return runner_->encoder()->num_encoded(); }
  [[nodiscard]] std::int32_t num_hits() const { return num_hits_; }
  [[nodiscard]] const ECConnectorOutput& totals() const { return totals_; }
  /// With tokens, and beside them slices of an image that is encoded ahead.
  [[nodiscard]] std::int32_t num_shared_steps() const { return num_shared_steps_; }

 private:
  template <class T>
  static void append(std::vector<T>& to, const std::vector<T>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }

  std::unique_ptr<ModelRunner> runner_;
  std::shared_ptr<ECConnector> connector_;
  std::optional<KVCacheManager> kv_cache_;
  std::optional<LocalKVCache> kv_port_;
  std::optional<EncoderCacheManager> encoder_cache_;
  std::optional<LocalEncoderCache> encoder_port_;
  std::optional<Scheduler> scheduler_;
  std::uint64_t first_id_ = 0;
  ECConnectorOutput totals_;
  std::int32_t num_hits_ = 0;
  std::int32_t num_shared_steps_ = 0;
};

std::string transfer_config(const std::string& connector, const std::string& role,
                            const std::string& extra) {
  return R"({"ec_connector":")" + connector + R"(","ec_role":")" + role +
         R"(","ec_connector_extra_config":)" + extra + "}";
}

const std::vector<Answer>& answers_without_connector() {
  static const std::vector<Answer> answers = [] {
    TransferEngine engine("");
    return engine.run(image_requests());
  }();
  return answers;
}

BOOST_AUTO_TEST_CASE(what_one_engine_encodes_another_one_loads_with_every_connector) {
  const TransferFolder folder;
  const std::vector<EngineCoreRequest> requests = image_requests();
  BOOST_TEST(requests.size() >= 5u);
  for (const auto& [connector, extra] :
       {std::pair{"ECExampleConnector", folder.extra("shared_storage_path")},
        std::pair{"ECMemoryConnector", std::string(R"({"pool":"engines"})")},
        std::pair{"ECSharedMemoryConnector", folder.extra("directory")},
        std::pair{"ECTieredConnector", folder.extra("shared_storage_path")}}) {
    BOOST_TEST_CONTEXT(connector) {
      TransferEngine producer(transfer_config(connector, "ec_producer", extra));
      BOOST_TEST((producer.run(requests) == answers_without_connector()));
      BOOST_TEST(producer.num_hits() == 0);
      BOOST_TEST(producer.num_encoded() >= kNumImages);
      producer.wait_for_saves(static_cast<std::size_t>(producer.num_encoded()));
      TransferEngine consumer(transfer_config(connector, "ec_consumer", extra));
      BOOST_TEST((consumer.run(requests) == answers_without_connector()));
      BOOST_TEST(consumer.num_encoded() == 0);
      BOOST_TEST(consumer.num_hits() >= kNumImages);
      BOOST_TEST(std::ssize(consumer.totals().loaded) == consumer.num_hits());
      BOOST_TEST(consumer.totals().failed.empty());
      BOOST_TEST(consumer.totals().saved.empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(images_are_encoded_in_slices_beside_steps_of_other_requests) {
  TransferEngine engine("", "cpu", /*encode_ahead=*/true);
  BOOST_TEST((engine.run(image_requests()) == answers_without_connector()));
  BOOST_TEST(engine.num_encoded() >= kNumImages);
  BOOST_TEST(engine.num_shared_steps() > kNumImages);
  const TransferFolder folder;
  const std::string config =
      transfer_config("ECExampleConnector", "ec_both", folder.extra("shared_storage_path"));
  TransferEngine producer(config, "cpu", /*encode_ahead=*/true);
  BOOST_TEST((producer.run(image_requests()) == answers_without_connector()));
  producer.wait_for_saves(static_cast<std::size_t>(producer.num_encoded()));
  TransferEngine consumer(config, "cpu", /*encode_ahead=*/true);
  BOOST_TEST((consumer.run(image_requests()) == answers_without_connector()));
  BOOST_TEST(consumer.num_encoded() == 0);
}

BOOST_AUTO_TEST_CASE(outputs_travel_between_the_memories_of_devices) {
  const std::string device = testing::test_device();
  if (!Device::create({.name = device}).ok()) return;
  // The first prompt alone: emulated kernels take their time.
  std::vector<EngineCoreRequest> requests = image_requests();
  requests.resize(1);
  TransferEngine alone("", device);
  const std::vector<Answer> expected = alone.run(requests);
  const std::string config =
      transfer_config("ECMemoryConnector", "ec_both", R"({"pool":"devices"})");
  TransferEngine producer(config, device);
  BOOST_TEST((producer.run(requests) == expected));
  BOOST_TEST(producer.num_encoded() == 1);
  TransferEngine consumer(config, device);
  BOOST_TEST((consumer.run(requests) == expected));
  BOOST_TEST(consumer.num_encoded() == 0);
}

BOOST_AUTO_TEST_CASE(an_engine_loads_what_it_has_saved_itself) {
  const TransferFolder folder;
  const std::vector<EngineCoreRequest> requests = image_requests();
  TransferEngine engine(
      transfer_config("ECExampleConnector", "ec_both", folder.extra("shared_storage_path")));
  BOOST_TEST((engine.run(requests) == answers_without_connector()));
  const std::int64_t num_encoded = engine.num_encoded();
  engine.wait_for_saves(static_cast<std::size_t>(num_encoded));
  engine.reset();
  BOOST_TEST((engine.run(requests) == answers_without_connector()));
  BOOST_TEST(engine.num_encoded() == num_encoded);
  BOOST_TEST(engine.num_hits() >= kNumImages);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_loaded_is_encoded_and_repaired_with_the_same_bits) {
  const TransferFolder folder;
  const std::string config =
      transfer_config("ECExampleConnector", "ec_both", folder.extra("shared_storage_path"));
  const std::vector<EngineCoreRequest> requests = image_requests();
  {
    TransferEngine producer(config);
    producer.run(requests);
    producer.wait_for_saves(static_cast<std::size_t>(producer.num_encoded()));
  }
  const auto file_of = [&](int image) {
    return folder.path() / ("image-" + std::to_string(image)) / "encoder_cache.safetensors";
  };
  std::vector<std::string> whole;
  for (int i = 0; i < kNumImages; ++i) whole.push_back(read_file(file_of(i)).value());
  // One is missing, one is cut, one belongs to an image of another size.
  fs::remove_all(file_of(0).parent_path());
  fs::resize_file(file_of(1), whole[1].size() - 100);
  std::string header = R"({"ec_cache":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  std::ofstream(file_of(2), std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), sizeof(length)) << header << "1234";
  TransferEngine engine(config);
  BOOST_TEST((engine.run(requests) == answers_without_connector()));
  BOOST_TEST(engine.num_encoded() >= kNumImages);
  const std::vector<std::string>& failed = engine.totals().failed;
  for (const char* identifier : {"image-1", "image-2"})
    BOOST_TEST((std::ranges::find(failed, identifier) != failed.end()), identifier);
  BOOST_TEST((std::ranges::find(failed, "image-0") == failed.end()));
  engine.wait_for_saves(static_cast<std::size_t>(engine.num_encoded()));
  for (int i = 0; i < kNumImages; ++i)
    BOOST_TEST((read_file(file_of(i)).value() == whole[static_cast<std::size_t>(i)]));
}

BOOST_AUTO_TEST_CASE(what_goes_between_the_lookup_and_the_load_is_encoded) {
  const TransferFolder folder;
  const std::string config =
      transfer_config("ECExampleConnector", "ec_consumer", folder.extra("shared_storage_path"));
  // Files that are there, and nothing in them.
  for (int i = 0; i < kNumImages; ++i) {
    const fs::path place = folder.path() / ("image-" + std::to_string(i));
    fs::create_directories(place);
    std::ofstream(place / "encoder_cache.safetensors");
  }
  TransferEngine engine(config);
  BOOST_TEST((engine.run(image_requests()) == answers_without_connector()));
  BOOST_TEST(engine.num_hits() >= kNumImages);
  BOOST_TEST(std::ssize(engine.totals().failed) == engine.num_hits());
  BOOST_TEST(engine.totals().loaded.empty());
}

}  // namespace
}  // namespace troupe
