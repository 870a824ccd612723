#include "tests/support/replay_vision_driver.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "runtime/base/check.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::int32_t kBlockSize = 16;
constexpr std::int32_t kNumBlocks = 256;
constexpr std::int32_t kMaxTokens = 1024;
constexpr float kTolerance = 1e-3f;

}  // namespace

std::vector<float> golden_floats(const SafetensorsFile& arrays, const std::string& name) {
  const auto values = arrays.find(name)->elements<float>();
  return {values.begin(), values.end()};
}

float largest_error(const std::vector<float>& got, const std::vector<float>& want) {
  CHECK(got.size() == want.size(), got.size(), want.size());
  float error = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float difference = std::fabs(got[i] - want[i]);
    if (std::isnan(difference)) return std::numeric_limits<float>::infinity();
    error = std::max(error, difference);
  }
  return error;
}

std::vector<VisionCase> read_vision_cases(const std::string& folder, const std::string& kind) {
  const json golden = json::parse(read_file(folder + "/golden.json").value());
  const SafetensorsFile arrays = SafetensorsFile::open(folder + "/golden.safetensors").value();
  std::vector<VisionCase> cases;
  for (const json& entry : golden.at("cases")) {
    if (!entry.contains(kind + "greedy_token_ids")) continue;
    VisionCase& one = cases.emplace_back();
    one.name = entry.at("name");
    one.prompt = entry.at("prompt_token_ids").get<std::vector<TokenId>>();
    one.places = entry.at("image_token_positions").get<std::vector<std::int32_t>>();
    one.greedy = entry.at(kind + "greedy_token_ids").get<std::vector<TokenId>>();
    one.logits = golden_floats(arrays, "case." + one.name + "." + kind + "last_logits");
    const std::size_t num_images = entry.at("images").size();
    for (std::size_t i = 0; i < num_images; ++i) {
      const json& images = golden.at("images");
      const auto image = std::ranges::find_if(
          images, [&](const json& known) { return known.at("file") == entry["images"][i]; });
      const auto rows =
          golden_floats(arrays, "projector." + std::to_string(image - images.begin()));
      one.rows.insert(one.rows.end(), rows.begin(), rows.end());
      const std::size_t per_image = one.places.size() / num_images;
      const std::int32_t first = one.places[i * per_image];
      one.spans.push_back({first, first + static_cast<std::int32_t>(per_image)});
    }
  }
  return cases;
}

VisionDriver::VisionDriver(const std::string& model, const std::string& isa,
                           const ModelLoadOptions& options)
    : device_(Device::create({.name = "cpu", .cpu_isa = isa, .num_threads = 2}).value()),
      loaded_(load_model(model, *device_, options, {}).value()),
      tables_({kBlockSize}),
      flat_(tables_) {
  CHECK(loaded_.model->reserve({.max_num_tokens = kMaxTokens, .max_num_logit_rows = kMaxTokens})
            .ok());
  for (const LayerCacheSpec& layer : loaded_.model->kv_cache_specs(kBlockSize, DType::kF32)) {
    const std::int64_t page = layer.spec.page_bytes();
    memory_.push_back(
        Memory::allocate(static_cast<std::size_t>(kNumBlocks * page), "a layer's pages").value());
    caches_.push_back(layer_cache(layer.spec, 0, memory_.back().data(), kNumBlocks, page).value());
  }
}

std::int32_t VisionDriver::add_sequence(std::int32_t num_tokens) {
  BlockTable blocks(1);
  for (std::int32_t i = 0; i * kBlockSize < num_tokens; ++i) blocks[0].push_back(next_block_++);
  CHECK(next_block_ <= kNumBlocks);
  return tables_.add(blocks);
}

void VisionDriver::clear() {
  flat_.clear();
  outputs_.clear();
}

void VisionDriver::add(const VisionCase& one, std::int32_t begin, std::int32_t end,
                       std::int32_t row) {
  const auto width = loaded_.model->hidden_size();
  const auto first = std::ranges::lower_bound(one.places, begin);
  const auto last = std::ranges::lower_bound(one.places, end);
  std::vector<std::int32_t> embedded;
  std::vector<std::int32_t> rows;
  for (auto place = first; place < last; ++place) {
    embedded.push_back(*place - begin);
    rows.push_back(static_cast<std::int32_t>(std::ssize(outputs_) / width) +
                   static_cast<std::int32_t>(place - first));
  }
  outputs_.insert(outputs_.end(), one.rows.begin() + (first - one.places.begin()) * width,
                  one.rows.begin() + (last - one.places.begin()) * width);
  std::vector<TwoWaySpan> spans;
  for (const TwoWaySpan& span : one.spans)
    if (span.end > begin && span.begin < end) spans.push_back(span);
  flat_.add(std::span(one.prompt)
                .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
            begin, row, 1, {.spans = spans, .embedded_tokens = embedded, .embedding_rows = rows});
}

void VisionDriver::add(TokenId token, std::int32_t position, std::int32_t row) {
  flat_.add(std::span(&token, 1), position, row, 1);
}

std::vector<std::vector<float>> VisionDriver::forward() {
  Model& model = *loaded_.model;
  const std::int64_t width = model.hidden_size();
  const ForwardBatch batch = flat_.view({outputs_.data(), std::ssize(outputs_) / width, width});
  std::vector<float> hidden(static_cast<std::size_t>(batch.num_outputs() * width));
  model.forward(batch, caches_, nullptr, {hidden.data(), batch.num_outputs(), width});
  std::vector<std::vector<float>> logits;
  for (std::int64_t i = 0; i < batch.num_outputs(); ++i) {
    std::vector<float>& row = logits.emplace_back(static_cast<std::size_t>(model.vocab_size()));
    model.compute_logits({hidden.data() + i * width, 1, width}, nullptr,
                         {row.data(), 1, model.vocab_size()});
  }
  return logits;
}

std::vector<float> VisionDriver::encode(const std::vector<float>& pixels, std::int64_t side) {
  const std::int64_t shape[] = {3, side, side};
  const std::int64_t num_rows = model().max_item_rows();
  const EncoderItem item{
      .modality = "image", .values = pixels, .shape = shape, .num_rows = num_rows};
  CHECK(model().check_item(item).ok());
  std::vector<float> rows(static_cast<std::size_t>(num_rows * model().hidden_size()));
  for (std::int64_t slice = 0; slice < model().num_item_slices(); ++slice)
    model().encode_slice(item, slice, {rows.data(), num_rows, model().hidden_size()});
  return rows;
}

std::vector<std::vector<float>> VisionDriver::prefill(const std::vector<VisionCase>& cases) {
  std::vector<std::vector<float>> logits;
  for (const VisionCase& one : cases) {
    clear();
    add(one, 0, one.size(), add_sequence(one.size()));
    logits.push_back(forward().front());
  }
  return logits;
}

std::string VisionDriver::replay(const VisionCase& one, std::size_t max_greedy) {
  const auto num_greedy = static_cast<std::int32_t>(std::min(one.greedy.size(), max_greedy));
  const std::int32_t row = add_sequence(one.size() + num_greedy);
  clear();
  add(one, 0, one.size(), row);
  std::vector<float> logits = forward().front();
  if (const float error = largest_error(logits, one.logits); !(error < kTolerance))
    return "logits differ by " + std::to_string(error);
  for (std::int32_t i = 0; i < num_greedy; ++i) {
    const auto best = static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
    const TokenId want = one.greedy[static_cast<std::size_t>(i)];
    if (best != want)
      return "token " + std::to_string(i) + " is " + std::to_string(best) + ", expected " +
             std::to_string(want);
    clear();
    add(best, one.size() + i, row);
    logits = forward().front();
  }
  return "";
}

}  // namespace troupe
