#pragma once
// Writes GGUF files as llama.cpp's converters do, of the small reference models.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/gguf_file.hpp"

namespace troupe {

/// Builds a file in memory: metadata first, then tensors.
class GgufWriter {
 public:
  explicit GgufWriter(std::uint32_t version = 3) : version_(version) {}
  void add(std::string_view key, std::string_view text);
  void add(std::string_view key, std::uint32_t number);
  void add(std::string_view key, float number);
  void add_flag(std::string_view key, bool flag);
  void add(std::string_view key, const std::vector<std::string>& texts);
  void add(std::string_view key, const std::vector<float>& numbers);
  void add(std::string_view key, const std::vector<std::int32_t>& numbers);
  /// `shape`: row major.
  void add_tensor(std::string_view name, GgmlType type, std::span<const std::int64_t> shape,
                  std::string_view bytes);
  [[nodiscard]] std::string bytes() const;

 private:
  void begin(std::string_view key, std::uint32_t type);
  template <class T>
  void add_array(std::string_view key, std::uint32_t type, const std::vector<T>& values);

  std::uint32_t version_;
  std::uint64_t num_keys_ = 0;
  std::uint64_t num_tensors_ = 0;
  std::string metadata_;
  std::string entries_;
  std::string data_;
};

/// A reference model's folder as a file; its matrices but embedding and head as blocks of that
/// type, or with kF32 all as they are (widened). Of the block types Q8_0 and Q4_0 are written.
/// `change` adds what the folder lacks. Throws std::runtime_error.
std::string gguf_of_model(const std::filesystem::path& folder, GgmlType type,
                          const std::function<void(GgufWriter&)>& change = {});

/// The vision encoder of a Gemma 3's folder as a file of its own, in f32. `swaps_mlp`:
/// ffn_up and ffn_down have each other's names, as in older files. The same errors.
struct MmprojChanges {
  bool swaps_mlp = false;
  std::string projector = "gemma3";
  std::function<void(GgufWriter&)> add;  ///< adds what the folder lacks
};
std::string mmproj_of_model(const std::filesystem::path& folder, const MmprojChanges& changes = {});

}  // namespace troupe
