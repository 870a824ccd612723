#include "runtime/models/adapter.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "runtime/base/file.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/models/adapter_config.hpp"
#include "runtime/models/half_floats.hpp"
#include "runtime/models/memory.hpp"
#include "runtime/models/quantize.hpp"
#include "runtime/models/safetensors.hpp"

namespace troupe {
namespace {

constexpr std::string_view kConfigFile = "adapter_config.json";
constexpr std::string_view kWeightsFile = "adapter_model.safetensors";
constexpr std::string_view kPeftPrefix = "base_model.model.";
constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;
constexpr std::size_t kCacheLineBytes = 64;

/// The name of a module without what checkpoints of various families have before it, and as
/// transformers calls it since version 5.
std::string plain_module_name(std::string_view name) {
  for (const std::string_view prefix :
       {"model.language_model.", "language_model.model.", "language_model.", "model."}) {
    if (!name.starts_with(prefix)) continue;
    name.remove_prefix(prefix.size());
    break;
  }
  std::string plain(name);
  constexpr std::string_view kFormer = ".block_sparse_moe.";
  if (const std::size_t at = plain.find(kFormer); at != std::string::npos)
    plain.replace(at, kFormer.size(), ".mlp.");
  return plain;
}

/// A and B of one module.
struct ModulePair {
  std::string a_name;  ///< in the file
  std::string b_name;
  const TensorView* a = nullptr;
  const TensorView* b = nullptr;
  std::string module;  ///< as the settings call it
  bool is_embedding = false;
};
using ModulePairs = std::map<std::string, ModulePair, std::less<>>;  // by plain_module_name

Error tensor_error(ErrorCode code, const std::string& tensor, const std::string& reason) {
  return {code, std::string(kWeightsFile) + ": tensor " + tensor + " " + reason};
}

/// PEFT adds the base's own embeddings and head, unchanged, to an adapter of one of them. The
/// module that such a tensor is a copy of; empty: it is none.
std::string_view copied_module(std::string_view tensor) {
  for (const std::string_view module : {"embed_tokens", "lm_head"})
    for (const std::string_view suffix : {".base_layer.weight", ".weight"}) {
      std::string_view name = tensor;
      if (!name.ends_with(suffix)) continue;
      name.remove_suffix(suffix.size());
      if (name.starts_with(kPeftPrefix) && name.ends_with("." + std::string(module))) return module;
    }
  return {};
}

/// What an update of a parameter of the module `name` is of: PEFT wraps the module, once for each
/// of its parameters, and names the file's tensors by that. Those of experts are in the order of
/// the model: the first one is inside.
Result<std::string> parameter_name(const std::string& name, const TensorMap& tensors,
                                   const AdapterConfig& config) {
  constexpr std::string_view kInner = ".base_layer";
  constexpr std::string_view kFirst = "gate_up_proj";
  constexpr std::string_view kSecond = "down_proj";
  const bool is_inner = name.ends_with(kInner);
  const std::string module = is_inner ? name.substr(0, name.size() - kInner.size()) : name;
  if (!module.ends_with(".experts")) {
    const bool is_weight = config.targets_parameter(module + ".weight");
    return is_weight ? module + ".weight" : name;
  }
  const std::string prefix = module + ".";
  const bool has_both =
      tensors.contains(std::string(kPeftPrefix) + module + std::string(kInner) + ".lora_A.weight");
  if (has_both) return prefix + std::string(is_inner ? kFirst : kSecond);
  const bool has_first = config.targets_parameter(prefix + std::string(kFirst));
  const bool has_second = config.targets_parameter(prefix + std::string(kSecond));
  if (has_first == has_second)
    return Error{ErrorCode::kUnsupported,
                 std::string(kConfigFile) + ": target_parameters does not tell whether " + module +
                     " is updated in " + std::string(kFirst) + " or in " + std::string(kSecond)};
  return prefix + std::string(has_first ? kFirst : kSecond);
}

/// Sorts the tensors of the file by module. Errors: those that are no LoRA, or stand alone.
Result<ModulePairs> pair_tensors(const TensorMap& tensors, const AdapterConfig& config) {
  struct Suffix {
    std::string_view text;
    bool is_a;
    bool is_embedding;
  };
  constexpr Suffix kSuffixes[] = {{".lora_A.weight", true, false},
                                  {".lora_B.weight", false, false},
                                  {".lora_embedding_A", true, true},
                                  {".lora_embedding_B", false, true}};
  ModulePairs pairs;
  for (const auto& [name, tensor] : tensors) {
    if (!copied_module(name).empty()) continue;
    const auto* const suffix = std::ranges::find_if(
        kSuffixes, [&name = name](const Suffix& each) { return name.ends_with(each.text); });
    if (!name.starts_with(kPeftPrefix) || suffix == std::end(kSuffixes)) {
      const bool is_dora = name.find("lora_magnitude_vector") != std::string::npos;
      return tensor_error(ErrorCode::kUnsupported, name,
                          is_dora ? "is of DoRA, which is not supported"
                                  : "is not supported, only A and B of LoRA are");
    }
    if (tensor.type != TensorType::kF32 && tensor.type != TensorType::kBF16 &&
        tensor.type != TensorType::kF16)
      return tensor_error(
          ErrorCode::kUnsupported, name,
          "has type " + std::string(to_string(tensor.type)) + ", expected F32, BF16 or F16");
    const std::string wrapped =
        name.substr(kPeftPrefix.size(), name.size() - kPeftPrefix.size() - suffix->text.size());
    ASSIGN_OR_RETURN(const std::string module, parameter_name(wrapped, tensors, config));
    std::string plain = plain_module_name(module);
    if (constexpr std::string_view kWeight = ".weight"; plain.ends_with(kWeight))
      plain.resize(plain.size() - kWeight.size());
    ModulePair& pair = pairs[std::move(plain)];
    if (!pair.module.empty() &&
        (pair.module != module || pair.is_embedding != suffix->is_embedding))
      return tensor_error(ErrorCode::kCorrupt, name, "updates the same matrix as another one");
    pair.module = module;
    pair.is_embedding = suffix->is_embedding;
    (suffix->is_a ? pair.a_name : pair.b_name) = name;
    (suffix->is_a ? pair.a : pair.b) = &tensor;
  }
  if (pairs.empty())
    return Error{ErrorCode::kCorrupt, std::string(kWeightsFile) + ": there are no tensors"};
  for (const auto& [name, pair] : pairs) {
    if (pair.a == nullptr)
      return tensor_error(ErrorCode::kCorrupt, pair.b_name, "has no A beside it");
    if (pair.b == nullptr)
      return tensor_error(ErrorCode::kCorrupt, pair.a_name, "has no B beside it");
  }
  return pairs;
}

Result<void> check_tensor_shape(const std::string& name, const TensorView& tensor,
                                std::int64_t num_rows, std::int64_t num_cols) {
  const std::vector<std::int64_t> expected = {num_rows, num_cols};
  if (tensor.shape == expected) return {};
  return tensor_error(ErrorCode::kCorrupt, name,
                      "has shape " + shape_text(tensor.shape) + ", expected " +
                          shape_text(expected) + ": it was made for another model or rank");
}

/// Of another shape it is not the base's own.
Result<void> check_copies(const TensorMap& tensors, const AdapterTargets& targets) {
  for (const auto& [name, tensor] : tensors) {
    const std::string_view module = copied_module(name);
    if (module.empty()) continue;
    for (const AdapterTarget& target : targets.targets) {
      const AdapterTarget::Part& part = target.parts.front();
      if (plain_module_name(part.name) != module) continue;
      const std::vector<std::int64_t> expected = target.is_embedding
                                                     ? std::vector{target.num_cols, part.num_rows}
                                                     : std::vector{part.num_rows, target.num_cols};
      if (tensor.shape != expected)
        return tensor_error(
            ErrorCode::kUnsupported, name,
            "has shape " + shape_text(tensor.shape) + ", the model's has " + shape_text(expected));
    }
  }
  return {};
}

/// The number in the name of a layer's module; -1: it is of none.
std::int64_t layer_of(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kLayers)) return -1;
  name.remove_prefix(kLayers.size());
  std::int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  return error == std::errc() ? layer : -1;
}

/// Modules of layers that another stage has are checked there. own: layers of this one.
bool is_of_other_stage(std::string_view name, const AdapterTargets& targets,
                       const std::set<std::int64_t>& own) {
  if (name == "embed_tokens") return !targets.is_first_stage;
  if (name == "lm_head") return !targets.is_last_stage;
  const std::int64_t layer = layer_of(name);
  return layer >= 0 && layer < targets.num_layers && !own.contains(layer);
}

/// One A in the matrix of a target, and the pieces that use it.
struct StackedPart {
  const ModulePair* pair = nullptr;
  const AdapterTarget::Part* part = nullptr;
  std::int32_t first_rank = 0;
  std::int32_t rank = 0;
};
struct TargetPlan {
  std::vector<StackedPart> stacked;
  struct Piece {
    std::size_t stacked = 0;
    std::size_t part = 0;
    std::int64_t first_col = 0;
    std::size_t b_offset = 0;  ///< bytes, in the adapter's memory
  };
  std::vector<Piece> pieces;
  std::int32_t num_ranks = 0;
  std::size_t a_offset = 0;
};

std::int32_t round_up_ranks(std::int32_t ranks) {
  constexpr std::int32_t kStep = AdapterWeight::kRankStep;
  return (ranks + kStep - 1) / kStep * kStep;
}

/// What of the pairs goes to the target. Errors: shapes, and ranks over the limit.
Result<TargetPlan> plan_target(const AdapterTarget& target, const ModulePairs& pairs,
                               const AdapterConfig& config, const AdapterLimits& limits) {
  TargetPlan plan;
  std::int64_t own_col = 0;
  std::int64_t next_col = 0;
  for (std::size_t i = 0; i < target.parts.size(); ++i) {
    const AdapterTarget::Part& part = target.parts[i];
    if (!part.is_alternative) own_col = std::exchange(next_col, next_col + part.rows.count);
    const auto found = pairs.find(plain_module_name(part.name));
    if (found == pairs.end()) continue;
    const ModulePair& pair = found->second;
    if (part.is_alternative && !plan.pieces.empty() && plan.pieces.back().part + 1 == i)
      return tensor_error(ErrorCode::kCorrupt, pair.a_name,
                          "updates the same matrix as another one");
    if (pair.is_embedding != target.is_embedding)
      return tensor_error(ErrorCode::kUnsupported, pair.a_name, "is not of that kind of module");
    const std::int64_t rank = config.rank_of(pair.module);
    if (rank > limits.max_rank)
      return Error{ErrorCode::kUnsupported, std::string(kConfigFile) + ": the rank of " +
                                                pair.module + " is " + std::to_string(rank) +
                                                ", max-lora-rank is " +
                                                std::to_string(limits.max_rank)};
    const std::int64_t all_cols = part.all_cols != 0 ? part.all_cols : target.num_cols;
    const std::int64_t a_cols = part.is_transposed ? part.num_rows : all_cols;
    const std::int64_t b_rows = part.is_transposed ? all_cols : part.num_rows;
    const std::int64_t num_ranks = rank * part.num_stacked;
    RETURN_IF_ERROR(check_tensor_shape(pair.a_name, *pair.a, num_ranks, a_cols));
    RETURN_IF_ERROR(check_tensor_shape(pair.b_name, *pair.b, b_rows, num_ranks));
    const auto known = std::ranges::find(plan.stacked, &pair, &StackedPart::pair);
    const auto index = static_cast<std::size_t>(known - plan.stacked.begin());
    if (known == plan.stacked.end()) {
      plan.stacked.push_back({&pair, &part, plan.num_ranks, static_cast<std::int32_t>(rank)});
      plan.num_ranks += round_up_ranks(static_cast<std::int32_t>(rank));
    }
    plan.pieces.push_back({.stacked = index, .part = i, .first_col = own_col});
  }
  return plan;
}

/// Numbers of the type that adapters are kept in.
class NumberWriter {
 public:
  NumberWriter(std::byte* to, ElementType type) : to_(to), type_(type) {}
  void put(std::int64_t index, float value) const {
    if (type_ == ElementType::kBF16) {
      const std::uint16_t bits = narrow_to_bf16(value);
      std::memcpy(to_ + index * 2, &bits, sizeof bits);
    } else {
      std::memcpy(to_ + index * 4, &value, sizeof value);
    }
  }

 private:
  std::byte* to_;
  ElementType type_;
};

float element(const TensorView& tensor, std::int64_t row, std::int64_t col) {
  float value = 0;
  widen_row(tensor, row, col, 1, &value);
  return value;
}

/// Columns `cols` of row `rank` of the update's A.
void read_a(const StackedPart& stacked, Slice cols, std::int64_t rank, float* out) {
  const AdapterTarget::Part& part = *stacked.part;
  const ModulePair& pair = *stacked.pair;
  const std::int64_t first = part.first_col + cols.begin;
  if (!part.is_transposed)
    return widen_row(*pair.a, part.stacked * stacked.rank + rank, first, cols.count, out);
  for (std::int64_t k = 0; k < cols.count; ++k)
    out[k] = element(*pair.b, first + k, rank * part.num_stacked + part.stacked);
}

/// Row n of the part's of the update's B.
void read_b(const StackedPart& stacked, const AdapterTarget::Part& part, std::int64_t n,
            float* out) {
  const ModulePair& pair = *stacked.pair;
  const std::int64_t row = part.rows.begin + n * part.row_stride;
  if (!part.is_transposed && part.num_stacked == 1)
    return widen_row(*pair.b, row, 0, stacked.rank, out);
  for (std::int64_t rank = 0; rank < stacked.rank; ++rank)
    out[rank] = part.is_transposed ? element(*pair.a, part.stacked * stacked.rank + rank, row)
                                   : element(*pair.b, row, rank * part.num_stacked + part.stacked);
}

/// Positive, and the same wherever the files are the same.
std::int32_t adapter_id(const LoraRequest& request, std::string_view config,
                        const TensorMap& tensors) {
  std::string text = std::to_string(request.name.size()) + ":" + request.name +
                     std::to_string(request.path.size()) + ":" + request.path +
                     to_hex(xxh3_128(config));
  for (const auto& [name, tensor] : tensors) {
    text += name;
    text += to_hex(xxh3_128(
        std::string_view(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size())));
  }
  const auto digest = xxh3_128(text);
  std::uint32_t bits = 0;
  std::memcpy(&bits, digest.data(), sizeof bits);
  return static_cast<std::int32_t>(bits % 0x7fffffffu) + 1;
}

/// Errors that name what the folder has not.
Result<void> check_folder(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    return Error{ErrorCode::kNotFound, "no folder " + folder.string() + " with an adapter"};
  if (!std::filesystem::exists(folder / kConfigFile, error))
    return Error{ErrorCode::kNotFound,
                 "no " + std::string(kConfigFile) + " in " + folder.string() + ": no adapter"};
  if (std::filesystem::exists(folder / kWeightsFile, error)) return {};
  if (std::filesystem::exists(folder / "adapter_model.bin", error))
    return Error{ErrorCode::kUnsupported, folder.string() +
                                              ": adapter_model.bin is not supported, only " +
                                              std::string(kWeightsFile)};
  return Error{ErrorCode::kNotFound, "no " + std::string(kWeightsFile) + " in " + folder.string()};
}

}  // namespace

Result<std::shared_ptr<const Adapter>> Adapter::load(const LoraRequest& request,
                                                     const AdapterTargets& targets,
                                                     const AdapterLimits& limits, Device& device) {
  const std::filesystem::path folder = request.path;
  const auto in_folder = [&](const Error& error) {
    return Error{error.code, request.path + ": " + error.message, error.param};
  };
  RETURN_IF_ERROR(check_folder(folder));
  ASSIGN_OR_RETURN(const std::string config_text, read_file(folder / kConfigFile, kMaxConfigBytes));
  const auto config = parse_adapter_config(config_text);
  if (!config.ok()) return in_folder(config.error());
  const auto file = SafetensorsFile::open(folder / kWeightsFile);
  if (!file.ok()) return in_folder(file.error());
  const auto pairs = pair_tensors(file->tensors(), *config);
  if (!pairs.ok()) return in_folder(pairs.error());
  if (const auto copies = check_copies(file->tensors(), targets); !copies.ok())
    return in_folder(copies.error());

  // All is checked before memory is taken.
  std::vector<TargetPlan> plans;
  std::size_t num_bytes = 0;
  std::set<const ModulePair*> used;
  std::set<std::int64_t> own_layers;
  const auto take = [&](std::int64_t num_elements) {
    const std::size_t offset = num_bytes;
    num_bytes += static_cast<std::size_t>(num_elements * element_bytes(limits.type));
    num_bytes = (num_bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
    return offset;
  };
  for (const AdapterTarget& target : targets.targets) {
    auto plan = plan_target(target, *pairs, *config, limits);
    if (!plan.ok()) return in_folder(plan.error());
    own_layers.insert(layer_of(plain_module_name(target.parts.front().name)));
    for (const StackedPart& part : plan->stacked) used.insert(part.pair);
    if (target.is_elsewhere) *plan = {};
    if (!target.is_embedding) plan->a_offset = take(plan->num_ranks * target.cols.count);
    for (TargetPlan::Piece& piece : plan->pieces)
      piece.b_offset =
          take(plan->stacked[piece.stacked].rank * target.parts[piece.part].rows.count);
    plans.push_back(std::move(plan).value());
  }
  for (const auto& [name, pair] : *pairs) {
    if (!used.contains(&pair) && !is_of_other_stage(name, targets, own_layers))
      return in_folder(tensor_error(ErrorCode::kUnsupported, pair.a_name,
                                    "is of a module that the model has not, or that no adapter "
                                    "can update here"));
  }

  auto adapter = std::make_shared<Adapter>();
  adapter->request_ = request;
  adapter->request_.int_id = adapter_id(request, config_text, file->tensors());
  ASSIGN_OR_RETURN(Memory host, Memory::allocate(num_bytes, "an adapter"));
  std::vector<float> row;
  for (std::size_t t = 0; t < plans.size(); ++t) {
    const TargetPlan& plan = plans[t];
    const AdapterTarget& target = targets.targets[t];
    if (target.is_embedding && !plan.stacked.empty()) {
      const StackedPart& part = plan.stacked.front();
      adapter->embedding_rank_ = part.rank;
      adapter->embedding_.resize(static_cast<std::size_t>(target.num_cols * part.rank));
      row.resize(static_cast<std::size_t>(target.num_cols));
      for (std::int64_t r = 0; r < part.rank; ++r) {
        widen_row(*part.pair->a, r, 0, target.num_cols, row.data());
        for (std::int64_t id = 0; id < target.num_cols; ++id)
          adapter->embedding_[static_cast<std::size_t>(id * part.rank + r)] =
              row[static_cast<std::size_t>(id)];
      }
    }
    if (!target.is_embedding) {
      row.resize(static_cast<std::size_t>(target.cols.count));
      const NumberWriter writer(host.data() + plan.a_offset, limits.type);
      for (const StackedPart& part : plan.stacked) {
        for (std::int64_t r = 0; r < part.rank; ++r) {
          read_a(part, target.cols, r, row.data());
          const std::int64_t first = (part.first_rank + r) * target.cols.count;
          for (std::int64_t k = 0; k < target.cols.count; ++k)
            writer.put(first + k, row[static_cast<std::size_t>(k)]);
        }
      }
    }
    for (const TargetPlan::Piece& piece : plan.pieces) {
      const StackedPart& part = plan.stacked[piece.stacked];
      const Slice rows = target.parts[piece.part].rows;
      row.resize(static_cast<std::size_t>(part.rank));
      const NumberWriter writer(host.data() + piece.b_offset, limits.type);
      for (std::int64_t n = 0; n < rows.count; ++n) {
        read_b(part, target.parts[piece.part], n, row.data());
        for (std::int64_t r = 0; r < part.rank; ++r)
          writer.put(r * rows.count + n, row[static_cast<std::size_t>(r)]);
      }
    }
  }
  // Of a file that was cut meanwhile, what was read is anything.
  if (const auto whole = file->check(); !whole.ok()) return in_folder(whole.error());

  ASSIGN_OR_RETURN(adapter->memory_, device.upload(std::move(host), "an adapter"));
  const std::byte* const base = adapter->memory_.data();
  std::vector<AdapterWeight> weights(plans.size());
  for (std::size_t t = 0; t < plans.size(); ++t) {
    const TargetPlan& plan = plans[t];
    if (plan.stacked.empty()) continue;
    AdapterWeight& weight = weights[t];
    weight.a = base + plan.a_offset;
    weight.num_ranks = plan.num_ranks;
    weight.num_pieces = static_cast<std::int32_t>(plan.pieces.size());
    for (std::size_t p = 0; p < plan.pieces.size(); ++p) {
      const TargetPlan::Piece& piece = plan.pieces[p];
      const StackedPart& part = plan.stacked[piece.stacked];
      weight.pieces[p] = {.b = base + piece.b_offset,
                          .first_rank = part.first_rank,
                          .rank = part.rank,
                          .first_col = piece.first_col,
                          .num_cols = targets.targets[t].parts[piece.part].rows.count,
                          .scaling = config->scaling_of(part.pair->module)};
    }
    adapter->num_ranks_ = std::max(adapter->num_ranks_, plan.num_ranks);
  }
  ASSIGN_OR_RETURN(adapter->weights_, device.upload(std::move(weights), "an adapter"));
  return std::shared_ptr<const Adapter>(std::move(adapter));
}

}  // namespace troupe
