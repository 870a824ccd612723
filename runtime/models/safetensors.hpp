#pragma once
// Reading weights in the safetensors format: an 8-byte length, a JSON header of that length, and
// the tensors' bytes without gaps (github.com/huggingface/safetensors).

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/mapped_file.hpp"
#include "runtime/base/result.hpp"
#include "runtime/gguf/architecture.hpp"
#include "runtime/gguf/gguf_file.hpp"

namespace troupe {

/// Every element type of the format, and behind them the blocks of GGUF files that weights are read
/// from.
enum class TensorType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
};
/// As the format spells it: "BF16", "I32", ...
[[nodiscard]] std::string_view to_string(TensorType type) noexcept;

/// What a row of a tensor is made of: single elements, or blocks of several.
struct TypeBlock {
  std::int64_t num_elements = 1;
  std::int64_t num_bytes = 0;
};
[[nodiscard]] TypeBlock type_block(TensorType type) noexcept;
/// Whole numbers with a scale: one of the types of GGUF.
[[nodiscard]] constexpr bool is_block_type(TensorType type) noexcept {
  return type >= TensorType::kQ4_0;
}

/// Both formats call a type the same.
[[nodiscard]] TensorType tensor_type(GgmlType type);

/// A tensor in a file: row major, little endian. A view; the file must stay open.
struct TensorView {
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::span<const std::byte> bytes;

  [[nodiscard]] std::int64_t num_elements() const noexcept;
  /// The elements as T. Pre: an element has sizeof(T) bytes.
  template <class T>
  [[nodiscard]] std::span<const T> elements() const {
    CHECK(!is_block_type(type) && type_block(type).num_bytes == sizeof(T), to_string(type));
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

/// "[2, 3]".
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

using TensorMap = std::map<std::string, TensorView, std::less<>>;

/// The tensors of a file that is in memory. `file_name` is for errors only. `bytes` must be aligned
/// to 8. Checked, as a file may be damaged or hostile: the header's length (at most 100 MB) and
/// form, every type, that shapes and offsets agree without overflow, and that the tensors fill the
/// data from begin to end without gap or overlap.
/// Errors: kCorrupt, kUnsupported (an element type or its alignment), naming file and tensor.
Result<TensorMap> parse_safetensors(std::span<const std::byte> bytes, std::string_view file_name);

/// Owns the mapping of one file: of safetensors, or if its name ends with ".bin" of torch.save
/// (torch_file.hpp).
class SafetensorsFile {
 public:
  /// Errors: those of MappedFile::open, and of parse_safetensors or parse_torch_file.
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  [[nodiscard]] const TensorMap& tensors() const noexcept { return tensors_; }
  /// Null if there is no tensor of that name.
  [[nodiscard]] const TensorView* find(std::string_view name) const;
  /// See MappedFile.
  void drop_pages(std::span<const std::byte> part) const noexcept { file_.drop_pages(part); }
  void report_loss() const noexcept { file_.report_loss(); }
  [[nodiscard]] Result<void> check() const { return file_.check(); }

 private:
  SafetensorsFile(MappedFile file, TensorMap tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}
  MappedFile file_;
  TensorMap tensors_;
};

/// Owns the files of a model folder, or a GGUF file, and finds tensors in them by name: that of
/// the Hugging Face checkpoint.
///
/// With model.safetensors.index.json exactly the files that it names are opened, and every tensor
/// that it lists must be where it says. Without it, all *.safetensors of the folder are opened. In
/// a folder that has none, pytorch_model.bin.index.json and pytorch_model*.bin are the same.
/// Constant after open.
class Checkpoint {
 public:
  struct Tensor {
    TensorView view;
    std::string file;  ///< its name in the folder, for errors
    /// Not 0: the halves of each so many rows are interleaved (q and k of llama in GGUF files).
    std::int64_t interleaved_head_dim = 0;
    std::string name_in_file;  ///< of GGUF files, which have names of their own
  };

  /// `gguf`: how tensors are called where it is a GGUF file; then `mmproj` is the file of its
  /// vision encoder, or empty. Errors: kNotFound (no weights), kCorrupt, kIo; they name the
  /// file. kUnsupported: a GGUF file without `gguf`. Pre: with `mmproj`, `gguf` has a projector.
  static Result<Checkpoint> open(const std::filesystem::path& model,
                                 const GgufArchitecture* gguf = nullptr,
                                 const std::filesystem::path& mmproj = {});

  [[nodiscard]] const Tensor* find(std::string_view name) const;
  /// The tensor; with `shape` and `types` it must have that shape and one of these types.
  /// Errors: kCorrupt (it is not there, or has another shape), kUnsupported (its type), naming file
  /// and tensor, what was expected and what was found.
  [[nodiscard]] Result<const Tensor*> require(
      const std::string& name, std::optional<std::span<const std::int64_t>> shape = std::nullopt,
      std::span<const TensorType> types = {}) const;
  [[nodiscard]] const std::map<std::string, Tensor, std::less<>>& tensors() const noexcept {
    return tensors_;
  }
  [[nodiscard]] bool is_gguf() const noexcept { return !ggufs_.empty(); }
  [[nodiscard]] std::size_t num_files() const noexcept { return files_.size() + ggufs_.size(); }
  /// Of all tensors together.
  [[nodiscard]] std::int64_t num_bytes() const noexcept;
  /// What has been read was the files'. Errors: kIo, as MappedFile::check. Whoever reads tensors
  /// asks: of a file that is cut, they are anything.
  [[nodiscard]] Result<void> check() const;
  /// Says that the tensor was read and is not needed for now: its memory goes back to the system.
  void drop_pages(const Tensor& tensor) const noexcept {
    for (const SafetensorsFile& file : files_) file.drop_pages(tensor.view.bytes);
    for (const MappedFile& file : ggufs_) file.drop_pages(tensor.view.bytes);
  }

 private:
  Result<void> add_file(const std::filesystem::path& path);
  static Result<Checkpoint> open_gguf(const std::filesystem::path& path,
                                      const GgufArchitecture& architecture);
  Result<void> add_mmproj(const std::filesystem::path& path, const GgufProjector& projector);
  /// Of a GGUF file.
  Result<void> add_tensor(const std::string& name, Tensor tensor);

  std::vector<SafetensorsFile> files_;
  std::vector<MappedFile> ggufs_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace troupe
