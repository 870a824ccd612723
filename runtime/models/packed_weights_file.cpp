#include "runtime/models/packed_weights_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "runtime/base/file.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/json.hpp"
#include "runtime/base/log.hpp"
#include "runtime/gguf/gguf_model.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "TROUPEPW";
constexpr std::uint64_t kAlignment = 4096;
constexpr std::size_t kPieceBytes = 1 << 20;
static_assert(std::endian::native == std::endian::little);

struct Header {
  std::array<char, kMagic.size()> magic;
  std::uint64_t index_offset;
  std::uint64_t index_bytes;
};

std::string to_text(const WeightSpec& spec) {
  std::string text = "matrix";
  add_choice(text, "rows", spec.num_rows);
  add_choice(text, "cols", spec.num_cols);
  add_choice(text, "type", spec.type);
  add_choice(text, "mode", spec.mode);
  add_choice(text, "k_shards", spec.k_shards);
  add_choice(text, "gated", spec.is_gated);
  add_choice(text, "quantized", spec.quantized);
  add_choice(text, "group_size", spec.group_size);
  add_choice(text, "minimums", spec.has_minimums);
  add_choice(text, "compact", spec.is_compact);
  return text;
}

Error failure(const std::string& action, const fs::path& path) {
  return {ErrorCode::kIo, "cannot " + action + " " + path.string() + ": " + std::strerror(errno)};
}

/// All that the packed bytes depend on, as text.
Result<std::string> key_of(const fs::path& model, const fs::path& mmproj,
                           const std::string& choices) {
  ASSIGN_OR_RETURN(const MappedFile program, MappedFile::open("/proc/self/exe"));
  const auto* text = reinterpret_cast<const char*>(program.bytes().data());
  const std::string_view whole(text, program.bytes().size());
  std::string key = "program " + to_hex(xxh3_128(whole)) + "\n" + choices;
  std::error_code error;
  std::vector<fs::path> files;
  if (fs::is_directory(model, error)) {
    for (const auto& entry : fs::directory_iterator(model, error)) {
      const std::string extension = entry.path().extension().string();
      if (extension == ".safetensors" || extension == ".json") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
  } else {
    files = gguf_paths(model);
  }
  if (!mmproj.empty()) files.push_back(mmproj);
  for (const fs::path& file : files) {
    const auto size = fs::file_size(file, error);
    if (error) break;
    const auto time = fs::last_write_time(file, error).time_since_epoch().count();
    key += "\n" + file.filename().string() + " " + std::to_string(size) + " bytes of " +
           std::to_string(time);
  }
  if (error)
    return Error{ErrorCode::kIo,
                 "cannot look at the files of " + model.string() + ": " + error.message()};
  return key;
}

}  // namespace

Result<std::unique_ptr<PackedWeightsFile>> PackedWeightsFile::open(const fs::path& folder,
                                                                   const fs::path& model,
                                                                   const fs::path& mmproj,
                                                                   const std::string& choices,
                                                                   ThreadPool& pool) {
  ASSIGN_OR_RETURN(std::string key, key_of(model, mmproj, choices));
  // Another state of the model or another program takes the place of the one before.
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(model, error);
  const std::string name = whole.filename().string() + "-" +
                           to_hex(xxh3_128(whole.string() + "\n" + mmproj.string() + choices)) +
                           ".packed";
  std::unique_ptr<PackedWeightsFile> file(
      new PackedWeightsFile(folder / name, std::move(key), pool));
  if (auto mapped = MappedFile::open(file->path_); mapped.ok()) {
    if (auto index = file->read_index(mapped->bytes())) {
      file->matrices_ = std::move(*index);
      file->mapped_ = std::move(mapped).value();
      file->mapped_.report_loss();
      return file;
    }
  }
  fs::create_directories(folder, error);
  if (error)
    return Error{ErrorCode::kIo, "cannot make " + folder.string() + ": " + error.message()};
  RETURN_IF_ERROR(file->begin_writing());
  return file;
}

PackedWeightsFile::~PackedWeightsFile() { stop_writing(); }

void PackedWeightsFile::stop_writing() noexcept {
  if (!unfinished_.empty()) ::unlink(unfinished_.c_str());
  unfinished_.clear();
  file_ = FileDescriptor();
}

void PackedWeightsFile::discard() noexcept {
  stop_writing();
  if (is_mapped()) ::unlink(path_.c_str());
}

std::optional<std::vector<PackedWeightsFile::Matrix>> PackedWeightsFile::read_index(
    std::span<const std::byte> file) const {
  Header header;
  if (file.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, file.data(), sizeof header);
  if (std::string_view(header.magic.data(), header.magic.size()) != kMagic ||
      header.index_offset > file.size() || header.index_bytes > file.size() - header.index_offset)
    return std::nullopt;
  const auto* text = reinterpret_cast<const char*>(file.data() + header.index_offset);
  std::vector<Matrix> matrices;
  try {
    const auto index = nlohmann::json::parse(text, text + header.index_bytes);
    if (index.at("key").get_ref<const std::string&>() != key_) return std::nullopt;
    for (const auto& entry : index.at("matrices")) {
      Matrix matrix{.spec = entry.at("spec").get<std::string>(),
                    .offset = entry.at("offset").get<std::uint64_t>(),
                    .num_bytes = entry.at("bytes").get<std::uint64_t>(),
                    .checksum = entry.at("checksum").get<std::string>()};
      if (matrix.offset % kAlignment != 0 || matrix.offset > file.size() ||
          matrix.num_bytes > file.size() - matrix.offset)
        return std::nullopt;
      matrices.push_back(std::move(matrix));
    }
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  return matrices;
}

Result<std::span<const std::byte>> PackedWeightsFile::next(WeightSpec& spec,
                                                           std::size_t num_bytes) {
  CHECK(is_mapped(), path_.string());
  const std::string plain = to_text(spec);
  WeightSpec compact = spec;
  compact.is_compact = true;
  const Matrix* const matrix = next_ < matrices_.size() ? &matrices_[next_] : nullptr;
  const bool is_compact = matrix != nullptr && matrix->spec == to_text(compact);
  if (matrix == nullptr || (is_compact ? matrix->num_bytes >= num_bytes
                                       : matrix->spec != plain || matrix->num_bytes != num_bytes))
    return Error{ErrorCode::kCorrupt, path_.string() + ": number " + std::to_string(next_) +
                                          " of " + std::to_string(matrices_.size()) + " is no " +
                                          plain + " with " + std::to_string(num_bytes) + " bytes"};
  const auto bytes = mapped_.bytes().subspan(matrix->offset, matrix->num_bytes);
  const auto read = mapped_.read_in(bytes);
  const bool is_whole = read.ok() && checksum(bytes) == matrix->checksum;
  if (!is_whole) {
    log_warning("packed weights are damaged: this matrix is packed anew",
                kv("file", path_.string()), kv("offset", matrix->offset), kv("bytes", bytes.size()),
                kv("error", read.ok() ? "not the bytes that were written" : read.error().message));
    if (repairs_ && unfinished_.empty())
      if (const auto begun = begin_repair(); !begun.ok()) give_up_repair(begun.error());
  } else if (!unfinished_.empty()) {
    if (const auto kept = write_matrix(*matrix, bytes); !kept.ok()) give_up_repair(kept.error());
  }
  ++next_;
  if (!is_whole) return std::span<const std::byte>();
  spec.is_compact = is_compact;
  return bytes;
}

std::string PackedWeightsFile::checksum(std::span<const std::byte> bytes) const {
  using Digest = std::array<std::uint8_t, 16>;
  const auto digest_of = [](std::span<const std::byte> part) {
    return xxh3_128({reinterpret_cast<const std::uint8_t*>(part.data()), part.size()});
  };
  std::vector<Digest> digests((bytes.size() + kPieceBytes - 1) / kPieceBytes);
  pool_.parallel_for(static_cast<std::int64_t>(digests.size()), [&](std::int64_t piece) {
    const std::size_t begin = static_cast<std::size_t>(piece) * kPieceBytes;
    digests[static_cast<std::size_t>(piece)] =
        digest_of(bytes.subspan(begin, std::min(kPieceBytes, bytes.size() - begin)));
  });
  return to_hex(digest_of(std::as_bytes(std::span(digests))));
}

Result<void> PackedWeightsFile::begin_writing() {
  std::string name = path_.string() + ".XXXXXX";
  file_ = FileDescriptor(::mkostemp(name.data(), O_CLOEXEC));
  if (!file_.valid()) return failure("write", name);
  unfinished_ = name;
  // As the model's own files: what may be read of it, its folder says.
  if (::fchmod(file_.get(), S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH) != 0)
    return failure("give others access to", name);
  end_ = kAlignment;
  return {};
}

Result<void> PackedWeightsFile::write(std::span<const std::byte> bytes, std::uint64_t offset) {
  if (!write_all(file_.get(), bytes, offset)) return failure("write", unfinished_);
  return {};
}

Result<void> PackedWeightsFile::write_matrix(Matrix matrix, std::span<const std::byte> packed) {
  matrix.offset = end_;
  end_ += (packed.size() + kAlignment - 1) / kAlignment * kAlignment;
  RETURN_IF_ERROR(write(packed, matrix.offset));
  written_.push_back(std::move(matrix));
  return {};
}

Result<void> PackedWeightsFile::append(const WeightSpec& spec, std::span<const std::byte> packed) {
  if (is_mapped() && unfinished_.empty()) return {};  // not repaired
  const auto kept = write_matrix(
      {.spec = to_text(spec), .num_bytes = packed.size(), .checksum = checksum(packed)}, packed);
  if (kept.ok() || !is_mapped()) return kept;
  give_up_repair(kept.error());
  return {};
}

Result<void> PackedWeightsFile::begin_repair() {
  RETURN_IF_ERROR(begin_writing());
  for (std::size_t i = 0; i < next_; ++i)
    RETURN_IF_ERROR(write_matrix(
        matrices_[i], mapped_.bytes().subspan(matrices_[i].offset, matrices_[i].num_bytes)));
  return {};
}

void PackedWeightsFile::give_up_repair(const Error& error) {
  log_warning("packed weights not repaired", kv("error", error.message));
  stop_writing();
  repairs_ = false;
}

Result<bool> PackedWeightsFile::commit() {
  if (unfinished_.empty()) return false;
  nlohmann::json index = {{"key", key_}, {"matrices", nlohmann::json::array()}};
  for (const Matrix& matrix : written_)
    index["matrices"].push_back({{"spec", matrix.spec},
                                 {"offset", matrix.offset},
                                 {"bytes", matrix.num_bytes},
                                 {"checksum", matrix.checksum}});
  const std::string text = index.dump();
  Header header{.magic = {}, .index_offset = end_, .index_bytes = text.size()};
  std::copy(kMagic.begin(), kMagic.end(), header.magic.begin());
  RETURN_IF_ERROR(write(std::as_bytes(std::span(text)), end_));
  RETURN_IF_ERROR(write(std::as_bytes(std::span(&header, 1)), 0));
  if (::rename(unfinished_.c_str(), path_.c_str()) != 0) return failure("rename", unfinished_);
  unfinished_.clear();
  file_ = FileDescriptor();
  return true;
}

}  // namespace troupe
