#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/file.hpp"
#include "runtime/models/load_model.hpp"
#include "runtime/models/packed_weights_file.hpp"
#include "tests/support/replay_models_driver.hpp"
#include "tests/support/standard_error.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// A model of its own, and a folder for its packed weights that is not there yet.
struct Folders {
  fs::path root = fs::temp_directory_path() / ("troupe_packed_weights_" + std::to_string(getpid()));
  fs::path model = root / "model";
  fs::path packed = root / "packed";

  explicit Folders(const std::string& name = "llama") {
    fs::create_directory(root);
    fs::copy(fs::path(TROUPE_GOLDEN_DIR) / "models/models" / name, model,
             fs::copy_options::recursive);
  }
  ~Folders() { fs::remove_all(root); }

  [[nodiscard]] std::vector<fs::path> files() const {
    std::vector<fs::path> paths;
    if (!fs::exists(packed)) return paths;
    for (const auto& entry : fs::directory_iterator(packed)) paths.push_back(entry.path());
    return paths;
  }
  [[nodiscard]] fs::path only_file() const {
    BOOST_REQUIRE(files().size() == 1);
    return files().front();
  }
};

/// Where a load takes its weights from.
enum class From { kCheckpoint, kFile, kCheckpointOnly };

From load(const Folders& folders, const ModelLoadOptions& options = {}) {
  const auto device = Device::create({.name = "cpu", .num_threads = 2}).value();
  ModelLoadOptions with_dir = options;
  with_dir.packed_weights_dir = folders.packed.string();
  const auto loaded = load_model(folders.model, *device, with_dir, {});
  if (!loaded.ok()) BOOST_FAIL(loaded.error().message);
  if (loaded.value().packed_weights == nullptr) return From::kCheckpointOnly;
  return loaded.value().packed_weights->is_mapped() ? From::kFile : From::kCheckpoint;
}

std::vector<DriverJob> jobs() {
  std::vector<DriverJob> jobs;
  for (const TokenId first : {3, 70, 200}) {
    DriverJob job{.prompt = {first, 5, 9, 11, 2, 90}, .params = {}, .num_outputs = 8};
    job.params.temperature = 0;
    job.params.logprobs = 3;
    jobs.push_back(job);
  }
  return jobs;
}

std::vector<DriverResult> results(const Folders& folders, const std::string& isa,
                                  const std::string& quantization, const fs::path& dir) {
  DrivenRunner runner = load_driven_runner({.folder = folders.model.string(),
                                            .dtype = "bfloat16",
                                            .quantization = quantization,
                                            .packed_weights_dir = dir.string(),
                                            .isa = isa});
  return drive(runner, jobs(), {});
}

void overwrite(const fs::path& path, const std::function<void(std::string&)>& edit) {
  std::string bytes = read_file(path).value();
  edit(bytes);
  // As a new file: mappings of the old one stay valid.
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

BOOST_AUTO_TEST_SUITE(packed_weights)

BOOST_AUTO_TEST_CASE(mapped_weights_compute_the_same_bits) {
  for (const std::string& name : available_isas()) {
    for (const std::string quantization : {"auto", "int8", "int4"}) {
      const Folders folders;
      const auto expected = results(folders, name, quantization, {});
      BOOST_CHECK(results(folders, name, quantization, folders.packed) == expected);
      const fs::path file = folders.only_file();
      const auto written = fs::last_write_time(file);
      BOOST_CHECK(results(folders, name, quantization, folders.packed) == expected);
      BOOST_CHECK(folders.only_file() == file);
      BOOST_CHECK(fs::last_write_time(file) == written);
    }
  }
}

BOOST_AUTO_TEST_CASE(
    mapped_experts_and_fused_matrices_compute_the_same_bits_and_each_rank_has_its_own) {
  for (const std::string name : {"mixtral", "qwen3_moe", "qwen2_moe", "phi3"}) {
    for (const std::string quantization : {"auto", "int8", "int4"}) {
      const Folders folders(name);
      const auto expected = results(folders, "auto", quantization, {});
      for (int load = 0; load < 2; ++load)
        BOOST_TEST((results(folders, "auto", quantization, folders.packed) == expected),
                   name << " in " << quantization << ", load " << load);
      BOOST_TEST(folders.files().size() == 1u);
    }
    const Folders folders(name);
    for (const From from : {From::kCheckpoint, From::kFile})
      for (const std::int32_t rank : {0, 1})
        BOOST_CHECK(load(folders, {.parallel = {.tensor_parallel_size = 2, .rank = rank}}) == from);
    BOOST_TEST(folders.files().size() == 2u);
  }
}

BOOST_AUTO_TEST_CASE(the_second_load_takes_them_from_the_file) {
  const Folders folders;
  BOOST_CHECK(load(folders) == From::kCheckpoint);
  BOOST_CHECK(load(folders) == From::kFile);
}

BOOST_AUTO_TEST_CASE(each_choice_has_a_file_of_its_own) {
  const Folders folders;
  const std::vector<ModelLoadOptions> choices = {
      {},
      {.quantization = "int8"},
      {.dtype = "float16"},
      {.parallel = {.tensor_parallel_size = 2, .rank = 0}},
      {.parallel = {.tensor_parallel_size = 2, .rank = 1}},
      {.parallel = {.pipeline_parallel_size = 2, .rank = 1}}};
  for (const ModelLoadOptions& options : choices)
    BOOST_CHECK(load(folders, options) == From::kCheckpoint);
  BOOST_TEST(folders.files().size() == choices.size());
  for (const ModelLoadOptions& options : choices)
    BOOST_CHECK(load(folders, options) == From::kFile);
}

BOOST_AUTO_TEST_CASE(a_changed_model_is_packed_anew_in_the_same_place) {
  const Folders folders;
  BOOST_CHECK(load(folders) == From::kCheckpoint);
  const fs::path file = folders.only_file();
  const fs::path weights = folders.model / "model-00002-of-00003.safetensors";
  fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::seconds(1));
  BOOST_CHECK(load(folders) == From::kCheckpoint);
  BOOST_CHECK(folders.only_file() == file);
  BOOST_CHECK(load(folders) == From::kFile);
}

BOOST_AUTO_TEST_CASE(what_is_no_whole_file_is_packed_anew) {
  const Folders folders;
  BOOST_CHECK(load(folders) == From::kCheckpoint);
  const std::string whole = read_file(folders.only_file()).value();
  const std::vector<std::function<void(std::string&)>> damages = {
      [](std::string& bytes) { bytes.clear(); },
      [](std::string& bytes) { bytes.resize(10); },
      [](std::string& bytes) { bytes.resize(bytes.size() / 2); },
      [](std::string& bytes) { bytes[0] = 'X'; },
      [](std::string& bytes) { bytes.replace(8, 8, 8, '\xff'); },
      [](std::string& bytes) { bytes.replace(16, 8, 8, '\xff'); },
      [](std::string& bytes) { bytes.back() = '{'; },
      [](std::string& bytes) {  // where a matrix begins: beyond the end
        const auto at = bytes.rfind("\"offset\":4096");
        bytes.replace(at + 9, 4, "8191");
      }};
  for (const auto& damage : damages) {
    overwrite(folders.only_file(), damage);
    BOOST_CHECK(load(folders) == From::kCheckpoint);
    BOOST_CHECK(read_file(folders.only_file()).value() == whole);
  }
}

BOOST_AUTO_TEST_CASE(a_file_of_other_matrices_is_left_and_removed) {
  const Folders folders;
  const auto expected = results(folders, "auto", "auto", {});
  BOOST_CHECK(results(folders, "auto", "auto", folders.packed) == expected);
  overwrite(folders.only_file(), [](std::string& bytes) {
    const auto at = bytes.rfind("rows ");  // the last matrix: all others are mapped
    bytes.replace(at, 5, "rowz ");
  });
  BOOST_CHECK(results(folders, "auto", "auto", folders.packed) == expected);
  BOOST_TEST(folders.files().empty());
  BOOST_CHECK(results(folders, "auto", "auto", folders.packed) == expected);
  BOOST_CHECK(results(folders, "auto", "auto", folders.packed) == expected);
  BOOST_TEST(folders.files().size() == 1u);
}

std::vector<std::size_t> matrix_offsets(const std::string& whole) {
  std::vector<std::size_t> places;
  for (std::size_t at = whole.find("\"offset\":"); at != std::string::npos;
       at = whole.find("\"offset\":", at + 1))
    places.push_back(std::stoul(whole.substr(at + 9)));
  return places;
}

BOOST_AUTO_TEST_CASE(a_flipped_bit_of_any_matrix_is_seen_and_only_that_matrix_packed_anew) {
  const Folders folders;
  const auto expected = results(folders, "auto", "auto", {});
  BOOST_CHECK(results(folders, "auto", "auto", folders.packed) == expected);
  const std::string whole = read_file(folders.only_file()).value();
  const std::vector<std::size_t> places = matrix_offsets(whole);
  BOOST_TEST(places.size() > 8);
  const auto damage = [&](std::size_t place) {
    overwrite(folders.only_file(), [&](std::string& bytes) { bytes[place + 77] ^= 0x10; });
  };
  for (const std::size_t place : places) {
    damage(place);
    StandardError log;
    BOOST_CHECK(results(folders, "auto", "auto", folders.packed) == expected);
    BOOST_TEST(log.take().find("offset=" + std::to_string(place)) != std::string::npos);
    BOOST_TEST((read_file(folders.only_file()).value() == whole));
  }
  // Several: the others are mapped, and the file is whole again.
  for (const std::size_t i : {1, 2, 5}) damage(places[i]);
  BOOST_CHECK(load(folders) == From::kFile);
  BOOST_CHECK(results(folders, "auto", "auto", folders.packed) == expected);
  BOOST_TEST((read_file(folders.only_file()).value() == whole));
}

BOOST_AUTO_TEST_CASE(weights_that_are_cut_under_a_runner_fail_it_and_no_other) {
  const Folders folders;
  const auto expected = results(folders, "auto", "auto", {});
  BOOST_CHECK(results(folders, "auto", "auto", folders.packed) == expected);
  const auto runner = [&](const fs::path& packed) {
    return load_driven_runner({.folder = folders.model.string(),
                               .dtype = "bfloat16",
                               .packed_weights_dir = packed.string()});
  };
  for (const bool cuts_packed : {true, false}) {
    DrivenRunner cut = runner(cuts_packed ? folders.packed : fs::path());
    DrivenRunner other = runner({});
    BOOST_TEST(cut.runner->check_health().ok());
    const fs::path file =
        cuts_packed ? folders.only_file() : folders.model / "model-00001-of-00003.safetensors";
    const std::string whole = read_file(file).value();
    // What is left of its pages is zeros to their ends, without a signal.
    fs::resize_file(file, cuts_packed ? 5000 : whole.size() - 1);
    BOOST_CHECK_EXCEPTION((void)drive(cut, jobs(), {}), std::runtime_error, [&](const auto& error) {
      return std::string_view(error.what()).find(file.string() + " was cut short") !=
             std::string_view::npos;
    });
    BOOST_TEST(!cut.runner->check_health().ok());
    if (cuts_packed) BOOST_CHECK(drive(other, jobs(), {}) == expected);
    if (!cuts_packed) std::ofstream(file, std::ios::binary) << whole;
    BOOST_CHECK(results(folders, "auto", "auto", folders.packed) == expected);
  }
}

BOOST_AUTO_TEST_CASE(a_folder_that_cannot_be_used_is_done_without) {
  Folders folders;
  folders.packed = "/proc/no folder here";
  BOOST_CHECK(load(folders) == From::kCheckpointOnly);
}

BOOST_AUTO_TEST_CASE(a_load_that_fails_leaves_nothing) {
  const Folders folders;
  const auto device = Device::create({.name = "cpu", .num_threads = 2}).value();
  overwrite(folders.model / "config.json", [](std::string& text) {
    const std::string from = "\"num_hidden_layers\": 4";
    BOOST_REQUIRE(text.find(from) != std::string::npos);
    text.replace(text.find(from), from.size(), "\"num_hidden_layers\": 9");
  });
  const auto loaded =
      load_model(folders.model, *device, {.packed_weights_dir = folders.packed.string()}, {});
  BOOST_CHECK(!loaded.ok());
  BOOST_TEST(!fs::exists(folders.packed));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
