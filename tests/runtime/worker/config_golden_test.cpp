// Variants of config.json against what transformers computes with them: the same numbers, or a
// refusal that names the field. The list: tests/support/make_config_goldens.py.
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/models/half_floats.hpp"
#include "runtime/models/safetensors.hpp"
#include "tests/support/quantized_writer.hpp"
#include "tests/support/replay_models_driver.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kGoldens = TROUPE_GOLDEN_DIR "/configs";

/// What the reference's own rounding and another order of sums may make.
constexpr double kTolerance = 1e-3;

/// The model folder of one case, as the reference had it.
class CaseFolder {
 public:
  explicit CaseFolder(const json& entry)
      : path_(fs::temp_directory_path() / ("config-golden-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
    std::ofstream(path_ / "config.json") << entry.at("config").dump();
    const std::string file = entry.at("family").get<std::string>() + ".safetensors";
    const SafetensorsFile stored = SafetensorsFile::open(kGoldens / "weights" / file).value();
    const json copies = entry.value("copy", json::object());
    const json dropped = entry.value("drop", json::array());
    SafetensorsWriter writer;
    for (const auto& [name, view] : stored.tensors()) {
      if (std::ranges::find(dropped, json(name)) != dropped.end()) continue;
      const TensorView& source = *stored.find(copies.value(name, name));
      std::vector<float> values;
      for (const std::uint16_t bits : source.elements<std::uint16_t>())
        values.push_back(widen_bf16(bits));
      writer.add_floats(name, source.shape, values);
    }
    std::ofstream(path_ / "model.safetensors", std::ios::binary) << writer.bytes();
  }
  ~CaseFolder() { fs::remove_all(path_); }
  CaseFolder(const CaseFolder&) = delete;
  CaseFolder& operator=(const CaseFolder&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

/// The log-probability of each token after the first.
std::vector<double> logprobs_of(const CaseFolder& folder, const std::vector<TokenId>& prompt) {
  DrivenRunner runner = load_driven_runner({.folder = folder.path(), .dtype = "float32"});
  DriverJob job;
  job.prompt = prompt;
  job.num_outputs = 1;
  job.params.temperature = 0;
  job.params.prompt_logprobs = 1;
  const LogprobRows rows = drive(runner, std::span(&job, 1), {}).front().prompt_logprobs;
  std::vector<double> found;
  std::size_t at = 0;
  for (const std::int32_t size : rows.row_sizes) {
    found.push_back(static_cast<double>(rows.logprobs[at]));  // the prompt's own token
    at += static_cast<std::size_t>(size);
  }
  return found;
}

/// Empty: the case is as it should be.
std::string difference(const json& entry, const std::vector<TokenId>& prompt) {
  const CaseFolder folder(entry);
  std::vector<double> found;
  try {
    found = logprobs_of(folder, prompt);
  } catch (const std::runtime_error& error) {
    if (!entry.contains("refused") && !entry.contains("fails"))
      return std::string("is refused: ") + error.what();
    const bool names = std::string_view(error.what()).find(entry.at("field").get<std::string>()) !=
                       std::string_view::npos;
    return names || entry.contains("fails")
               ? ""
               : std::string("is refused without the field's name: ") + error.what();
  }
  if (entry.contains("refused")) return "is not refused";
  if (entry.contains("fails")) return "";
  const auto expected = entry.at("logprobs").get<std::vector<double>>();
  if (found.size() != expected.size()) return "has another number of rows";
  for (std::size_t i = 0; i < found.size(); ++i)
    if (!(std::fabs(found[i] - expected[i]) <= kTolerance))
      return "token " + std::to_string(i + 1) + " has log-probability " + std::to_string(found[i]) +
             ", expected " + std::to_string(expected[i]);
  return "";
}

/// Every `step`-th case.
void check_cases(std::size_t step) {
  const json goldens = json::parse(read_file(kGoldens / "cases.json").value());
  const auto prompt = goldens.at("prompt").get<std::vector<TokenId>>();
  const json& cases = goldens.at("cases");
  BOOST_TEST(cases.size() >= 150);
  for (std::size_t i = 0; i < cases.size(); i += step) {
    const std::string reason = difference(cases[i], prompt);
    BOOST_TEST(reason == "", cases[i].at("name").get<std::string>() << ": " << reason);
  }
}

BOOST_AUTO_TEST_SUITE(config_goldens)

BOOST_AUTO_TEST_CASE(a_sample_of_configurations_is_read_as_transformers_reads_them) {
  check_cases(6);
}

// `make test-long` names it.
BOOST_AUTO_TEST_CASE(every_configuration_is_read_as_transformers_reads_it,
                     *boost::unit_test::disabled()) {
  check_cases(1);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
