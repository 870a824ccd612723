#include "runtime/models/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/base/json_depth.hpp"
#include "runtime/gguf/gguf_model.hpp"
#include "runtime/gguf/mmproj.hpp"
#include "runtime/gguf/model_files.hpp"
#include "runtime/models/torch_file.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxDimensions = 16;

struct TypeInfo {
  TensorType type;
  std::string_view name;
  std::int64_t num_bytes;
  std::int64_t num_elements = 1;
};
constexpr std::array<TypeInfo, 28> kTypes = {{
    {TensorType::kBool, "BOOL", 1},
    {TensorType::kU8, "U8", 1},
    {TensorType::kI8, "I8", 1},
    {TensorType::kF8E5M2, "F8_E5M2", 1},
    {TensorType::kF8E4M3, "F8_E4M3", 1},
    {TensorType::kI16, "I16", 2},
    {TensorType::kU16, "U16", 2},
    {TensorType::kF16, "F16", 2},
    {TensorType::kBF16, "BF16", 2},
    {TensorType::kI32, "I32", 4},
    {TensorType::kU32, "U32", 4},
    {TensorType::kF32, "F32", 4},
    {TensorType::kI64, "I64", 8},
    {TensorType::kU64, "U64", 8},
    {TensorType::kF64, "F64", 8},
    {TensorType::kQ4_0, "Q4_0", 18, 32},
    {TensorType::kQ4_1, "Q4_1", 20, 32},
    {TensorType::kQ5_0, "Q5_0", 22, 32},
    {TensorType::kQ5_1, "Q5_1", 24, 32},
    {TensorType::kQ8_0, "Q8_0", 34, 32},
    {TensorType::kQ2_K, "Q2_K", 84, 256},
    {TensorType::kQ3_K, "Q3_K", 110, 256},
    {TensorType::kQ4_K, "Q4_K", 144, 256},
    {TensorType::kQ5_K, "Q5_K", 176, 256},
    {TensorType::kQ6_K, "Q6_K", 210, 256},
    {TensorType::kIQ4_NL, "IQ4_NL", 18, 32},
    {TensorType::kIQ4_XS, "IQ4_XS", 136, 256},
    {TensorType::kMXFP4, "MXFP4", 17, 32},
}};

const TypeInfo& info(TensorType type) noexcept { return kTypes[static_cast<std::size_t>(type)]; }

std::string in_quotes(std::string_view name) {
  constexpr std::size_t kMaxShown = 200;
  return "\"" + std::string(name.substr(0, kMaxShown)) + "\"";
}

/// Reads the entry of one tensor. `data` is the part of the file behind the header.
class EntryParser {
 public:
  EntryParser(std::string_view file, std::string_view tensor, std::span<const std::byte> data)
      : file_(file), tensor_(tensor), data_(data) {}

  Result<TensorView> parse(const json& entry) const {
    if (!entry.is_object()) return corrupt("its entry is not an object");
    TensorView tensor;
    RETURN_IF_ERROR(parse_type(entry, tensor));
    ASSIGN_OR_RETURN(const std::uint64_t num_bytes, parse_shape(entry, tensor));
    const auto offsets = entry.find("data_offsets");
    if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 ||
        !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned())
      return corrupt("data_offsets is not a pair of numbers");
    const auto begin = (*offsets)[0].get<std::uint64_t>();
    const auto end = (*offsets)[1].get<std::uint64_t>();
    if (begin > end || end > data_.size())
      return corrupt("data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) +
                     "] do not lie in the file's " + std::to_string(data_.size()) +
                     " bytes of data");
    if (end - begin != num_bytes)
      return corrupt("shape " + shape_text(tensor.shape) + " of " +
                     std::string(to_string(tensor.type)) + " takes " + std::to_string(num_bytes) +
                     " bytes, data_offsets hold " + std::to_string(end - begin));
    tensor.bytes = data_.subspan(begin, num_bytes);
    const auto alignment = static_cast<std::uintptr_t>(type_block(tensor.type).num_bytes);
    if (reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % alignment != 0)
      return error(ErrorCode::kUnsupported, "its data is not aligned to its element size");
    return tensor;
  }

  [[nodiscard]] Error corrupt(const std::string& reason) const {
    return error(ErrorCode::kCorrupt, reason);
  }

 private:
  [[nodiscard]] Error error(ErrorCode code, const std::string& reason) const {
    return {code, std::string(file_) + ": tensor " + in_quotes(tensor_) + ": " + reason};
  }

  Result<void> parse_type(const json& entry, TensorView& tensor) const {
    const auto dtype = entry.find("dtype");
    if (dtype == entry.end() || !dtype->is_string()) return corrupt("dtype is missing");
    const auto& name = dtype->get_ref<const std::string&>();
    const auto* known = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeInfo& type) {
      return type.name == name && !is_block_type(type.type);
    });
    if (known == kTypes.end()) return error(ErrorCode::kUnsupported, "dtype " + in_quotes(name));
    tensor.type = known->type;
    return {};
  }

  /// Sets the shape; returns the bytes it takes.
  Result<std::uint64_t> parse_shape(const json& entry, TensorView& tensor) const {
    const auto shape = entry.find("shape");
    if (shape == entry.end() || !shape->is_array()) return corrupt("shape is missing");
    if (shape->size() > kMaxDimensions)
      return corrupt("shape has " + std::to_string(shape->size()) + " dimensions, at most " +
                     std::to_string(kMaxDimensions) + " are read");
    auto num_bytes = static_cast<std::uint64_t>(type_block(tensor.type).num_bytes);
    for (const json& dimension : *shape) {
      if (!dimension.is_number_unsigned()) return corrupt("shape holds what is not a size");
      const auto size = dimension.get<std::uint64_t>();
      if (size > INT64_MAX || __builtin_mul_overflow(num_bytes, size, &num_bytes))
        return corrupt("its shape overflows");
      tensor.shape.push_back(static_cast<std::int64_t>(size));
    }
    return num_bytes;
  }

  std::string_view file_;
  std::string_view tensor_;
  std::span<const std::byte> data_;
};

/// The tensors must follow each other without gap or overlap and end with the file.
Result<void> check_contiguous(const TensorMap& tensors, std::span<const std::byte> data,
                              std::string_view file) {
  std::vector<const TensorMap::value_type*> in_order;
  in_order.reserve(tensors.size());
  for (const auto& entry : tensors) in_order.push_back(&entry);
  std::sort(in_order.begin(), in_order.end(), [](const auto* a, const auto* b) {
    const auto key = [](const auto* entry) {
      const auto& bytes = entry->second.bytes;
      return std::pair(bytes.data(), bytes.data() + bytes.size());
    };
    return key(a) < key(b);
  });
  const std::byte* expected = data.data();
  for (const auto* entry : in_order) {
    const std::span<const std::byte> bytes = entry->second.bytes;
    if (bytes.data() != expected)
      return EntryParser(file, entry->first, data)
          .corrupt("it starts at byte " + std::to_string(bytes.data() - data.data()) +
                   " of the data, the tensors before it end at " +
                   std::to_string(expected - data.data()));
    expected += bytes.size();
  }
  if (expected != data.data() + data.size())
    return Error{ErrorCode::kCorrupt, std::string(file) + ": " +
                                          std::to_string(data.data() + data.size() - expected) +
                                          " bytes at the end belong to no tensor"};
  return {};
}

/// The files that an index names. Errors: kCorrupt.
Result<std::map<std::string, std::string>> parse_index(std::span<const std::byte> bytes,
                                                       std::string_view file) {
  const auto corrupt = [&](const std::string& reason) {
    return Error{ErrorCode::kCorrupt, std::string(file) + ": " + reason};
  };
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (const auto pointer = lfs_pointer_error(text, file)) return *pointer;
  const json index = parse_bounded_json<json>(text);
  if (!index.is_object()) return corrupt("not a JSON object");
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object()) return corrupt("no weight_map");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, name] : weight_map->items()) {
    if (!name.is_string()) return corrupt("weight_map: " + in_quotes(tensor) + " names no file");
    const auto& file_name = name.get_ref<const std::string&>();
    if (file_name.empty() || file_name == "." || file_name == ".." ||
        file_name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
      return corrupt("weight_map: " + in_quotes(file_name) + " is not a file name in this folder");
    files.emplace(tensor, file_name);
  }
  return files;
}

/// Why a folder has no weights for us, and what to do about those that it has.
Error no_weights(const std::filesystem::path& folder) {
  std::string message = folder.string() + ": no *.safetensors files";
  std::error_code failure;
  std::set<std::filesystem::path> names;
  for (std::filesystem::directory_iterator entries(folder, failure), end; entries != end;
       entries.increment(failure))
    names.insert(entries->path().filename());
  for (const std::filesystem::path& name : names) {
    const std::string extension = name.extension().string();
    if (extension == ".gguf")
      return {ErrorCode::kNotFound,
              message + "; " + name.string() + " is a model of its own: name the file"};
    if (extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt")
      return {
          ErrorCode::kUnsupported,
          message + "; " + name.string() +
              " has weights as a Python pickle, of which only pytorch_model*.bin are read: take "
              "the model's *.safetensors, or convert it with transformers: "
              "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)"};
  }
  return {ErrorCode::kNotFound, message};
}

}  // namespace

std::string_view to_string(TensorType type) noexcept { return info(type).name; }
TypeBlock type_block(TensorType type) noexcept {
  return {info(type).num_elements, info(type).num_bytes};
}

TensorType tensor_type(GgmlType type) {
  const std::string name = ggml_type_name(static_cast<std::uint32_t>(type));
  const auto* known = std::ranges::find(kTypes, name, &TypeInfo::name);
  CHECK(known != kTypes.end(), name);
  return known->type;
}

std::int64_t TensorView::num_elements() const noexcept {
  return static_cast<std::int64_t>(bytes.size()) / type_block(type).num_bytes *
         type_block(type).num_elements;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

Result<TensorMap> parse_safetensors(std::span<const std::byte> bytes, std::string_view file_name) {
  const auto corrupt = [&](const std::string& reason) {
    return Error{ErrorCode::kCorrupt, std::string(file_name) + ": " + reason};
  };
  const std::string_view whole(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (const auto pointer = lfs_pointer_error(whole, file_name)) return *pointer;
  if (bytes.size() < kLengthBytes)
    return corrupt("the file has " + std::to_string(bytes.size()) +
                   " bytes, too few for a safetensors header");
  std::uint64_t header_bytes = 0;  // little endian, as every machine we build for
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes)
    return corrupt("the header claims " + std::to_string(header_bytes) + " bytes, at most " +
                   std::to_string(kMaxHeaderBytes) + " are allowed");
  if (header_bytes > bytes.size() - kLengthBytes)
    return corrupt("the header claims " + std::to_string(header_bytes) + " bytes, the file has " +
                   std::to_string(bytes.size() - kLengthBytes) + " (is it cut short?)");
  const auto* text = reinterpret_cast<const char*>(bytes.data() + kLengthBytes);
  const json header = parse_bounded_json<json>({text, header_bytes});
  if (!header.is_object()) return corrupt("the header is not a JSON object");

  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + header_bytes);
  TensorMap tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    ASSIGN_OR_RETURN(TensorView tensor, EntryParser(file_name, name, data).parse(entry));
    tensors.emplace(name, std::move(tensor));
  }
  RETURN_IF_ERROR(check_contiguous(tensors, data, file_name));
  return tensors;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  const auto parse = path.extension() == ".bin" ? parse_torch_file : parse_safetensors;
  ASSIGN_OR_RETURN(TensorMap tensors, parse(file.bytes(), path.filename().string()));
  return SafetensorsFile(std::move(file), std::move(tensors));
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<void> Checkpoint::add_file(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  const std::string file_name = path.filename().string();
  for (const auto& [name, view] : file.tensors()) {
    const auto [entry, added] = tensors_.emplace(name, Tensor{.view = view, .file = file_name});
    if (!added)
      return Error{ErrorCode::kCorrupt, "tensor " + in_quotes(name) + " is in " +
                                            entry->second.file + " and in " + file_name};
  }
  file.report_loss();
  files_.push_back(std::move(file));
  return {};
}

Result<void> Checkpoint::check() const {
  for (const SafetensorsFile& file : files_) RETURN_IF_ERROR(file.check());
  for (const MappedFile& file : ggufs_) RETURN_IF_ERROR(file.check());
  return {};
}

Result<Checkpoint> Checkpoint::open_gguf(const std::filesystem::path& path,
                                         const GgufArchitecture& architecture) {
  Checkpoint checkpoint;
  ASSIGN_OR_RETURN(GgufModel gguf, open_gguf_model(path, GgufKeys::kNoVocabulary));
  for (const auto& [name, tensor] : gguf.contents.tensors) {
    const std::string& file_name = gguf.file_names[tensor.file];
    ASSIGN_OR_RETURN(
        const std::vector<GgufWeight> weights,
        huggingface_weights(name, tensor, architecture, *gguf.contents.metadata, file_name));
    for (const GgufWeight& weight : weights)
      RETURN_IF_ERROR(checkpoint.add_tensor(
          weight.name, {.view = {tensor_type(tensor.type), weight.shape, weight.bytes},
                        .file = file_name,
                        .interleaved_head_dim = weight.interleaved_head_dim,
                        .name_in_file = name}));
  }
  checkpoint.ggufs_ = std::move(gguf.files);
  for (const MappedFile& file : checkpoint.ggufs_) file.report_loss();
  return checkpoint;
}

Result<void> Checkpoint::add_tensor(const std::string& name, Tensor tensor) {
  const auto [entry, added] = tensors_.try_emplace(name, std::move(tensor));
  if (added) return {};
  return Error{ErrorCode::kCorrupt, tensor.file + ": tensors " + in_quotes(tensor.name_in_file) +
                                        " and " + in_quotes(entry->second.name_in_file) +
                                        " are the same one of the model"};
}

Result<void> Checkpoint::add_mmproj(const std::filesystem::path& path,
                                    const GgufProjector& projector) {
  ASSIGN_OR_RETURN(GgufModel mmproj, open_gguf_model(path, GgufKeys::kNoVocabulary));
  const MmprojNames names(mmproj.contents, projector);
  for (const auto& [name, tensor] : mmproj.contents.tensors)
    RETURN_IF_ERROR(add_tensor(names.huggingface_name(name),
                               {.view = {tensor_type(tensor.type), tensor.shape, tensor.bytes},
                                .file = mmproj.file_names[tensor.file],
                                .name_in_file = name}));
  for (MappedFile& file : mmproj.files) {
    file.report_loss();
    ggufs_.push_back(std::move(file));
  }
  return {};
}

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& folder,
                                    const GgufArchitecture* gguf,
                                    const std::filesystem::path& mmproj) {
  if (troupe::is_gguf(folder)) {
    if (gguf != nullptr) {
      ASSIGN_OR_RETURN(Checkpoint checkpoint, open_gguf(folder, *gguf));
      if (!mmproj.empty()) RETURN_IF_ERROR(checkpoint.add_mmproj(mmproj, *gguf->projector));
      return checkpoint;
    }
    return Error{ErrorCode::kUnsupported,
                 folder.string() + ": this architecture is not read from GGUF files"};
  }
  struct Format {
    std::string_view index;
    std::string_view first;  ///< of file names
    std::string_view last;
  };
  static constexpr Format kFormats[] = {{"model.safetensors.index.json", "", ".safetensors"},
                                        {"pytorch_model.bin.index.json", "pytorch_model", ".bin"}};
  Checkpoint checkpoint;
  std::string_view index_name;
  std::map<std::string, std::string> listed;
  std::set<std::filesystem::path> paths;
  std::error_code failure;
  for (const Format& format : kFormats) {
    if (!paths.empty()) break;
    index_name = format.index;
    if (std::filesystem::exists(folder / format.index, failure)) {
      ASSIGN_OR_RETURN(const MappedFile index, MappedFile::open(folder / format.index));
      ASSIGN_OR_RETURN(listed, parse_index(index.bytes(), format.index));
      for (const auto& [tensor, file] : listed) paths.insert(folder / file);
      continue;
    }
    for (std::filesystem::directory_iterator entries(folder, failure), end; entries != end;
         entries.increment(failure)) {
      const std::string name = entries->path().filename().string();
      if (name.starts_with(format.first) && name.ends_with(format.last))
        paths.insert(entries->path());
    }
  }
  if (paths.empty()) return no_weights(folder);
  for (const auto& path : paths) RETURN_IF_ERROR(checkpoint.add_file(path));
  for (const auto& [name, file] : listed) {
    const Tensor* tensor = checkpoint.find(name);
    if (tensor == nullptr || tensor->file != file)
      return Error{ErrorCode::kCorrupt, file + ": tensor " + in_quotes(name) + " is missing, " +
                                            std::string(index_name) + " lists it"};
  }
  return checkpoint;
}

const Checkpoint::Tensor* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<const Checkpoint::Tensor*> Checkpoint::require(
    const std::string& name, std::optional<std::span<const std::int64_t>> shape,
    std::span<const TensorType> types) const {
  const Tensor* tensor = find(name);
  if (tensor == nullptr)
    return Error{ErrorCode::kCorrupt,
                 "tensor " + in_quotes(name) +
                     (shape ? " of shape " + shape_text(*shape) : std::string()) +
                     " is in none of the " + std::to_string(num_files()) + " weight files"};
  const TensorView& view = tensor->view;
  if (shape && !std::ranges::equal(view.shape, *shape))
    return Error{ErrorCode::kCorrupt, tensor->file + ": tensor " + in_quotes(name) + " has shape " +
                                          shape_text(view.shape) + ", expected " +
                                          shape_text(*shape)};
  if (!types.empty() && std::ranges::find(types, view.type) == types.end()) {
    std::string supported;
    for (const TensorType type : types)
      supported += (supported.empty() ? "" : ", ") + std::string(to_string(type));
    return Error{ErrorCode::kUnsupported, tensor->file + ": tensor " + in_quotes(name) +
                                              " has type " + std::string(to_string(view.type)) +
                                              ", supported are " + supported};
  }
  return tensor;
}

std::int64_t Checkpoint::num_bytes() const noexcept {
  std::int64_t num_bytes = 0;
  for (const auto& [name, tensor] : tensors_)
    num_bytes += static_cast<std::int64_t>(tensor.view.bytes.size());
  return num_bytes;
}

}  // namespace troupe
