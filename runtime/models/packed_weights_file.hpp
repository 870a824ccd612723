#pragma once
// Packed weights kept in a file, for the next load to map.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.hpp"
#include "kernels/thread_pool.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/mapped_file.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// Appends " name number" to a text that says what bytes depend on.
template <class Number>
void add_choice(std::string& text, std::string_view name, Number number) {
  text.append(" ").append(name).append(" ");
  text.append(std::to_string(static_cast<std::int64_t>(number)));
}

/// The matrices of one load, in its order. Either a file of them is mapped, or one is written,
/// which is renamed when complete: an interrupted load leaves nothing. Other loads of the same
/// weights (workers of other groups, the next start) share its pages in the page cache.
///
/// It is an optimisation only: its errors are logged, and the weights are packed. A
/// mapped file must not be written to; a new one is another file of that name. Disks and memory
/// lose bits, so each matrix has a checksum, which is compared when it is mapped. Of a file with
/// damaged matrices the others are used, and a whole one is written beside it for the next load.
///
/// The file: "TROUPEPW", offset and size of the index as two u64 in little endian; the matrices,
/// each at a multiple of 4096 bytes; the index, JSON with the key and each matrix's specification,
/// offset, size and checksum: XXH3 of the XXH3s of its pieces of 1 MiB.
class PackedWeightsFile {
 public:
  /// The file in `folder`, which is made if need be, for this model (a folder or a GGUF file, and
  /// `mmproj` or empty) and what else the bytes depend on: `choices`, as text (instruction set,
  /// widths, the rank's share).
  /// Maps it if it was written by this very program from the model's files as they are now.
  /// Errors, if it can be neither read nor written: kIo.
  /// The pool, which outlives this, computes the checksums.
  static Result<std::unique_ptr<PackedWeightsFile>> open(const std::filesystem::path& folder,
                                                         const std::filesystem::path& model,
                                                         const std::filesystem::path& mmproj,
                                                         const std::string& choices,
                                                         ThreadPool& pool);
  PackedWeightsFile(const PackedWeightsFile&) = delete;
  PackedWeightsFile& operator=(const PackedWeightsFile&) = delete;
  ~PackedWeightsFile();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] bool is_mapped() const noexcept { return !mapped_.bytes().empty(); }
  /// The next matrix, in memory as long as this lives: of num_bytes, or compact and of fewer; then
  /// the spec becomes that. Empty: its bytes are not those that were written; it is to be packed,
  /// and appended. Errors: kCorrupt (it is another one). Pre: is_mapped().
  Result<std::span<const std::byte>> next(WeightSpec& spec, std::size_t num_bytes);
  /// Writes the next matrix. Errors: kIo. Pre: not is_mapped(), or next() gave an empty one.
  Result<void> append(const WeightSpec& spec, std::span<const std::byte> packed);
  /// All are there. True: a file was written. Errors: kIo.
  Result<bool> commit();
  /// Removes the file, as it is not what it should be: the next load writes another. What was
  /// mapped stays so.
  void discard() noexcept;
  /// What is mapped was the file's whenever it was read. Errors: kIo, as MappedFile::check.
  [[nodiscard]] Result<void> check() const { return mapped_.check(); }

 private:
  struct Matrix {
    std::string spec;
    std::uint64_t offset = 0;
    std::uint64_t num_bytes = 0;
    std::string checksum;
  };
  PackedWeightsFile(std::filesystem::path path, std::string key, ThreadPool& pool)
      : path_(std::move(path)), key_(std::move(key)), pool_(pool) {}
  [[nodiscard]] std::string checksum(std::span<const std::byte> bytes) const;
  /// The index, if the file is one that was written under the key.
  [[nodiscard]] std::optional<std::vector<Matrix>> read_index(
      std::span<const std::byte> file) const;
  Result<void> begin_writing();
  Result<void> write(std::span<const std::byte> bytes, std::uint64_t offset);
  Result<void> write_matrix(Matrix matrix, std::span<const std::byte> packed);
  /// Writes the mapped matrices before the next one to a file that is to replace this one.
  Result<void> begin_repair();
  /// It stays as it is, and the next load has to pack what this one does.
  void give_up_repair(const Error& error);
  void stop_writing() noexcept;

  std::filesystem::path path_;
  std::string key_;
  ThreadPool& pool_;
  std::vector<Matrix> matrices_;  ///< of the mapped file
  MappedFile mapped_;
  std::size_t next_ = 0;
  std::vector<Matrix> written_;
  FileDescriptor file_;     ///< being written, as unfinished_
  std::string unfinished_;  ///< empty: none
  std::uint64_t end_ = 0;   ///< of what is written
  bool repairs_ = true;     ///< damaged matrices
};

}  // namespace troupe
