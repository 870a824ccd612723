// A tensor that is missing, or of another shape, is an error before any weight is read or packed,
// and before the device is asked for memory: of every family, quantised or not, and of each rank.
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/models/load_model.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/worker/model_runner.hpp"
#include "tests/support/gguf_writer.hpp"
#include "tests/support/quantized_writer.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kReferenceModels = TROUPE_GOLDEN_DIR "/models/models";

/// A folder of its own, of links to a model's files; those that a test changes are copies.
class DamagedFolder {
 public:
  explicit DamagedFolder(const fs::path& model)
      : path_(fs::temp_directory_path() / ("shape-checks-" + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directory(path_);
    for (const auto& file : fs::directory_iterator(model))
      if (file.is_regular_file())
        fs::create_symlink(fs::absolute(file.path()), path_ / file.path().filename());
  }
  ~DamagedFolder() { fs::remove_all(path_); }
  DamagedFolder(const DamagedFolder&) = delete;
  DamagedFolder& operator=(const DamagedFolder&) = delete;
  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

  /// Gives the tensor another shape of the same size. That shape.
  std::vector<std::int64_t> reshape(const std::string& file, const std::string& tensor) {
    std::vector<std::int64_t> shape;
    change_header(file, [&](json& header) {
      shape = header[tensor]["shape"].get<std::vector<std::int64_t>>();
      if (shape.size() > 1 && shape.front() != shape.back())
        std::swap(shape.front(), shape.back());
      else
        shape.insert(shape.begin(), 1);
      header[tensor]["shape"] = shape;
    });
    return shape;
  }
  /// Gives the tensor a name that no one asks for.
  void rename(const std::string& file, const std::string& tensor) {
    change_header(file, [&](json& header) {
      header["unknown." + tensor] = header[tensor];
      header.erase(tensor);
    });
  }

 private:
  template <class Change>
  void change_header(const std::string& file, const Change& change) {
    const std::string bytes = read_file(path_ / file).value();
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof(size));
    json header = json::parse(bytes.substr(sizeof(size), size));
    change(header);
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t text_size = text.size();
    fs::remove(path_ / file);
    std::ofstream out(path_ / file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&text_size), sizeof(text_size));
    out << text << bytes.substr(sizeof(size) + size);
  }

  fs::path path_;
};

struct FoundTensor {
  std::string name, file;
  std::vector<std::int64_t> shape;
};

/// The last tensor of the model, in the order of names, that the predicate takes.
template <class Predicate>
std::optional<FoundTensor> last_tensor(const fs::path& model, const Predicate& predicate) {
  const Checkpoint checkpoint = Checkpoint::open(model).value();
  std::optional<FoundTensor> found;
  for (const auto& [name, tensor] : checkpoint.tensors())
    if (predicate(name, tensor.view)) found = FoundTensor{name, tensor.file, tensor.view.shape};
  return found;
}

/// Behind the layers, where models load it last.
bool is_final_norm(const std::string& name, const TensorView&) {
  std::string lower = name;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower.find("norm") != std::string::npos && lower.find("vision") == std::string::npos &&
         std::ranges::none_of(lower, [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// Of the last layer.
bool is_matrix_of_layer(const std::string& name, const TensorView& view) {
  return name.find("layer") != std::string::npos && name.find("vision") == std::string::npos &&
         std::ranges::any_of(name, [](unsigned char c) { return std::isdigit(c) != 0; }) &&
         view.shape.size() >= 2;
}

/// Why the model is not loaded; nothing may have been read or allocated before.
std::string early_error(const fs::path& model, const ModelLoadOptions& options) {
  const auto device = Device::create({.name = "cpu", .num_threads = 1}).value();
  bool has_read = false;
  const auto loaded =
      load_model(model, *device, options, [&](double, std::string_view) { has_read = true; });
  BOOST_TEST(!has_read);
  BOOST_TEST(device->allocated_bytes() == 0);
  return loaded.ok() ? "" : loaded.error().message;
}

void check_names(const std::string& error, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    BOOST_TEST(error.find(part) != std::string::npos, part << " is not named: " << error);
}

void check_reshaped(const fs::path& model, const FoundTensor& tensor,
                    const ModelLoadOptions& options) {
  DamagedFolder folder(model);
  const auto shape = folder.reshape(tensor.file, tensor.name);
  check_names(early_error(folder.path(), options),
              {tensor.file, "\"" + tensor.name + "\"", shape_text(shape)});
}

void check_missing(const fs::path& model, const FoundTensor& tensor,
                   const ModelLoadOptions& options) {
  DamagedFolder folder(model);
  if (fs::exists(model / "model.safetensors.index.json")) return;  // the index names it
  folder.rename(tensor.file, tensor.name);
  check_names(early_error(folder.path(), options), {tensor.name});
}

BOOST_AUTO_TEST_CASE(a_wrong_tensor_of_any_family_is_found_before_memory_is_taken) {
  std::size_t num_families = 0;
  for (const auto& entry : fs::directory_iterator(kReferenceModels)) {
    const fs::path& model = entry.path();
    if (!fs::exists(model / "config.json")) continue;
    BOOST_TEST_CONTEXT(model.filename().string()) {
      ++num_families;
      const auto norm = last_tensor(model, is_final_norm);
      const auto matrix = last_tensor(model, is_matrix_of_layer);
      BOOST_TEST_REQUIRE(norm.has_value());
      BOOST_TEST_REQUIRE(matrix.has_value());
      for (const char* const quantization : {"auto", "int8"}) {
        if (quantization == std::string("int8") && model.filename() == "gpt_oss_mxfp4") continue;
        const ModelLoadOptions options{.quantization = quantization};
        check_reshaped(model, *norm, options);
        check_reshaped(model, *matrix, options);
      }
      check_missing(model, *norm, {});
      check_missing(model, *matrix, {});
    }
  }
  BOOST_TEST(num_families >= 18u);
}

BOOST_AUTO_TEST_CASE(each_rank_finds_a_wrong_tensor_before_memory_is_taken) {
  for (const char* const name : {"llama", "qwen3_moe", "deepseek_v3", "mamba2", "gpt_oss"}) {
    const fs::path model = kReferenceModels / name;
    const auto matrix = last_tensor(model, is_matrix_of_layer).value();
    for (std::int32_t rank = 0; rank < 2; ++rank) BOOST_TEST_CONTEXT(name << ", rank " << rank)
    check_reshaped(model, matrix, {.parallel = {.tensor_parallel_size = 2, .rank = rank}});
    // Of pipeline stages the last one has it.
    BOOST_TEST_CONTEXT(name << ", the last stage") {
      check_reshaped(model, matrix, {.parallel = {.pipeline_parallel_size = 2, .rank = 1}});
    }
  }
}

BOOST_AUTO_TEST_CASE(wrong_tensors_of_quantised_checkpoints_are_found_before_memory_is_taken) {
  const fs::path base = fs::temp_directory_path() / ("quantised-" + std::to_string(getpid()));
  using enum QuantizedFormat;
  const std::pair<QuantizedFormat, std::string> cases[] = {
      {kGptq, ".qweight"},         {kGptq, ".scales"}, {kAwq, ".qzeros"},
      {kPacked, ".weight_packed"}, {kInt8, ".weight"}, {kFp8Block, ".weight"}};
  for (const auto& [format, suffix] : cases) {
    write_quantized_model(
        kReferenceModels / "llama",
        {.format = format, .bits = format == kInt8 ? 8 : 4, .symmetric = format != kAwq},
        base / "quantized", base / "widened");
    const auto tensor =
        last_tensor(base / "quantized", [&](const std::string& name, const TensorView& view) {
          return is_matrix_of_layer(name, view) && name.ends_with(suffix) &&
                 view.shape.front() != view.shape.back();
        });
    BOOST_TEST_CONTEXT(suffix) {
      BOOST_TEST_REQUIRE(tensor.has_value());
      check_reshaped(base / "quantized", *tensor, {});
    }
  }
  fs::remove_all(base);
}

BOOST_AUTO_TEST_CASE(a_wrong_tensor_of_a_gguf_file_is_found_before_memory_is_taken) {
  const fs::path path =
      fs::temp_directory_path() / ("shape-checks-" + std::to_string(getpid()) + ".gguf");
  for (const char* const name : {"llama", "qwen2", "qwen3", "gemma3_text"}) {
    std::string bytes = gguf_of_model(kReferenceModels / name, GgmlType::kF32);
    const std::string tensor = "blk.1.ffn_up.weight";
    const std::size_t at = bytes.find(tensor);
    BOOST_TEST_REQUIRE(at != std::string::npos);
    // The number of dimensions, and the two of them.
    char* const first = bytes.data() + at + tensor.size() + sizeof(std::uint32_t);
    std::uint64_t dims[2];
    std::memcpy(dims, first, sizeof(dims));
    BOOST_TEST_REQUIRE(dims[0] != dims[1]);
    std::swap(dims[0], dims[1]);
    std::memcpy(first, dims, sizeof(dims));
    std::ofstream(path, std::ios::binary) << bytes;
    BOOST_TEST_CONTEXT(name) {
      check_names(early_error(path, {}),
                  {"\"model.layers.1.mlp.up_proj.weight\"", path.filename().string(), "expected"});
    }
  }
  fs::remove(path);
}

BOOST_AUTO_TEST_CASE(a_wrong_tensor_of_a_draft_head_is_found_before_the_model_takes_memory) {
  const fs::path head = fs::path(TROUPE_GOLDEN_DIR) / "draft_heads" / "llama_eagle";
  const auto tensor = last_tensor(head, is_matrix_of_layer).value();
  DamagedFolder folder(head);
  const auto shape = folder.reshape(tensor.file, tensor.name);
  bool has_read = false;
  WorkerOptions options;
  options.model = (kReferenceModels / "llama").string();
  options.max_model_len = 256;
  options.block_size = 16;
  options.max_num_batched_tokens = 64;
  options.max_num_seqs = 1;
  options.device = "cpu";
  options.threads = 1;
  options.speculative = {.num_draft_tokens = 2, .draft_head = DraftHeadKind::kEagle};
  options.speculative.draft_model = folder.path().string();
  const auto runner =
      ModelRunner::load(options, [&](double, std::string_view) { has_read = true; });
  BOOST_TEST(!has_read);
  BOOST_REQUIRE(!runner.ok());
  check_names(runner.error().message, {tensor.file, tensor.name, shape_text(shape)});
}

}  // namespace
}  // namespace troupe
