// The cases with images of a model that sees: files -> pixels and tokens -> encoder -> greedy
// tokens and logits, in float32.

#include "tests/support/replay_vision.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "messages/encoder_input.hpp"
#include "runtime/base/file.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/processors/image_token_format.hpp"

namespace troupe {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr float kImageTolerance = 1e-3f;  // of logits
constexpr float kPixelTolerance = 2e-6f;  // pixel values are within [-1, 1]

template <class T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}

float largest_of(std::span<const float> found, std::span<const float> expected) {
  if (found.size() != expected.size()) return INFINITY;
  float largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const float difference = std::fabs(found[i] - expected[i]);
    if (!(difference <= largest)) largest = difference;  // NaN counts
  }
  return largest;
}

std::vector<std::int32_t> places_of(std::span<const MultiModalFeature> items) {
  std::vector<std::int32_t> places;
  for (const MultiModalFeature& item : items)
    for (std::int32_t i = 0; i < item.length; ++i) places.push_back(item.offset + i);
  return places;
}

}  // namespace

ImagePrompts::ImagePrompts(const fs::path& model, const fs::path& golden)
    : golden_(json::parse(value_or_throw(read_file(golden / "golden.json")))),
      arrays_(value_or_throw(SafetensorsFile::open(golden / "golden.safetensors"))) {
  const ModelConfig config = value_or_throw(load_model_config(model));
  const auto tokenizer = value_or_throw(Tokenizer::load(model));
  if (!config.image_tokens) throw std::runtime_error(model.string() + " takes no images");
  // The images are beside the golden, or those that several use.
  const fs::path folder =
      fs::canonical(fs::exists(golden / "images") ? golden : golden / ".." / ".." / "..");
  const auto inputs = value_or_throw(ImageInputs::load(
      model, value_or_throw(image_token_format(*config.image_tokens, *tokenizer)),
      {.loader = {.local_folder = folder},
       .cache = value_or_throw(
           make_processor_cache({.kind = "processor_only", .max_bytes = 1 << 20}))}));
  for (const json& entry : golden_.at("cases")) {
    std::vector<ImageSource> sources;
    for (const json& file : entry.at("images"))
      sources.push_back(
          {.url = "file://" + folder.string() + "/" + file.get<std::string>(), .uuid = {}});
    auto expanded =
        value_or_throw(inputs->expand(entry.at("text").get<std::string>(), sources, {}, {}));
    ImagePrompt& one = cases_.emplace_back();
    one.name = entry.at("name");
    one.job.prompt = value_or_throw(
        tokenizer->encode(expanded.text, entry.at("add_special_tokens").get<bool>()));
    const auto placed = inputs->place(one.job.prompt, expanded.items);
    if (!placed.ok()) throw std::runtime_error(one.name + ": " + placed.error().message);
    one.job.items = std::move(expanded.items);
    one.expected = entry.at("greedy_token_ids").get<std::vector<TokenId>>();
    one.job.num_outputs = static_cast<std::int32_t>(one.expected.size());
    one.job.params.temperature = 0;
    one.job.params.ignore_eos = true;
    one.job.params.logprobs = kAllLogprobs;
  }
}

std::string ImagePrompts::input_difference(std::size_t index) const {
  const json& entry = golden_.at("cases")[index];
  const ImagePrompt& one = cases_[index];
  if (one.job.prompt != entry.at("prompt_token_ids").get<std::vector<TokenId>>())
    return "the prompt has other tokens";
  if (places_of(one.job.items) !=
      entry.at("image_token_positions").get<std::vector<std::int32_t>>())
    return "the images have other places";
  for (std::size_t i = 0; i < one.job.items.size(); ++i) {
    const json& images = golden_.at("images");
    const auto image = std::ranges::find_if(
        images, [&](const json& known) { return known.at("file") == entry.at("images")[i]; });
    const std::string name = "pixel_values." + std::to_string(image - images.begin());
    const auto found = unpack_encoder_input(*one.job.items[i].data);
    const float difference =
        found ? largest_of(found->values, arrays_.find(name)->elements<float>()) : INFINITY;
    if (!(difference <= kPixelTolerance))
      return "pixels of image " + std::to_string(i) + " differ by " + std::to_string(difference);
  }
  return {};
}

std::string ImagePrompts::output_difference(std::size_t index, const DriverResult& result) const {
  const ImagePrompt& one = cases_[index];
  if (result.tokens != one.expected) return "greedy tokens differ";
  const auto logits = arrays_.find("case." + one.name + ".last_logits")->elements<float>();
  std::vector<float> expected(logits.begin(), logits.end());
  double sum = 0;
  const double best = *std::ranges::max_element(expected);
  for (const float x : expected) sum += std::exp(x - best);
  for (float& x : expected) x = static_cast<float>(x - best - std::log(sum));
  std::vector<float> found(expected.size());
  for (std::int32_t i = 0; i < result.logprobs.row_sizes.front(); ++i)
    found[static_cast<std::size_t>(result.logprobs.token_ids[static_cast<std::size_t>(i)])] =
        result.logprobs.logprobs[static_cast<std::size_t>(i)];
  const float difference = largest_of(found, expected);
  return difference <= kImageTolerance ? "" : "logits differ by " + std::to_string(difference);
}

void replay_vision(const fs::path& model, const fs::path& golden, ReplayReport& report) {
  const ImagePrompts cases(model, golden);
  const std::string name = model.filename().string();
  const auto add = [&](const std::string& where, const std::string& difference) {
    report.add(difference.empty() ? "" : name + ", " + where + ": " + difference);
  };
  std::vector<DriverJob> jobs;
  for (std::size_t i = 0; i < cases.all().size(); ++i) {
    add(cases.all()[i].name, cases.input_difference(i));
    jobs.push_back(cases.all()[i].job);
  }
  for (const std::string& isa : available_isas()) {
    std::printf("  %s, %zu cases with images\n", isa.c_str(), jobs.size());
    DrivenRunner runner = load_driven_runner({.folder = model.string(), .isa = isa});
    const std::vector<DriverResult> results = drive(runner, jobs, {});
    for (std::size_t i = 0; i < results.size(); ++i)
      add(cases.all()[i].name + ", " + isa, cases.output_difference(i, results[i]));
  }
}

}  // namespace troupe
