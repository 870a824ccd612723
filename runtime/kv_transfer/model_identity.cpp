#include "runtime/kv_transfer/model_identity.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/hash.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kNumSamples = 64;
constexpr std::size_t kSampleBytes = 4096;

/// Of the file's size, and of samples at even distances.
Result<std::string> sample_file(const fs::path& path) {
  const auto failed = [&] {
    return Error{ErrorCode::kIo, "cannot read " + path.string() + ": " + std::strerror(errno), {}};
  };
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0) return failed();
  const auto size = static_cast<std::int64_t>(status.st_size);
  std::string samples = std::to_string(size) + '\n';
  std::array<char, kSampleBytes> sample;
  const std::int64_t last = std::max<std::int64_t>(0, size - std::ssize(sample));
  for (std::int64_t i = 0; i < kNumSamples; ++i) {
    const ssize_t count = ::pread(file.get(), sample.data(), sample.size(),
                                  static_cast<off_t>(last * i / (kNumSamples - 1)));
    if (count < 0) return failed();
    samples.append(sample.data(), static_cast<std::size_t>(count));
  }
  return to_hex(xxh3_128(samples));
}

/// Of a folder's configuration and weights, or of the one file.
Result<std::string> sample_model(const std::string& model) {
  std::vector<fs::path> files;
  std::error_code error;
  if (fs::is_directory(model, error)) {
    for (fs::directory_iterator file(model, error), end; !error && file != end;
         file.increment(error)) {
      const std::string extension = file->path().extension().string();
      if (extension == ".safetensors" || extension == ".gguf" ||
          file->path().filename() == "config.json")
        files.push_back(file->path());
    }
  } else {
    files.emplace_back(model);
  }
  if (error)
    return Error{ErrorCode::kIo, "cannot read the folder " + model + ": " + error.message(), {}};
  std::ranges::sort(files);
  std::string text;
  for (const fs::path& file : files) {
    ASSIGN_OR_RETURN(const std::string digest, sample_file(file));
    text += file.filename().string() + ' ' + digest + '\n';
  }
  return text;
}

std::string digest_of_origin(const std::string& model_identity, const KVCacheConfig& cache,
                             const ParallelConfig& parallel) {
  return model_identity + cache_layout(cache, parallel);
}

}  // namespace

Result<std::string> model_identity(const WorkerOptions& options, const ModelLoaded& loaded) {
  ASSIGN_OR_RETURN(std::string text, sample_model(options.model));
  for (const std::string* other : {&options.mmproj, &options.speculative.draft_model}) {
    if (other->empty()) continue;
    ASSIGN_OR_RETURN(const std::string more, sample_model(*other));
    text += "with\n" + more;
  }
  std::ostringstream rest;
  rest << loaded.architecture << '\n'
       << loaded.dtype << '\n'
       << options.quantization << '\n'
       << options.speculative.draft_quantization << '\n'
       << static_cast<int>(options.speculative.draft_head) << '\n'
       << options.kv_cache_dtype << '\n'
       << loaded.device << '\n'
       << loaded.cpu_isa << '\n'
       << loaded.canonical_shards << '\n'
       << options.max_model_len << '\n';
  return to_hex(xxh3_128(text + rest.str()));
}

std::string cache_layout(const KVCacheConfig& cache, const ParallelConfig& parallel) {
  std::ostringstream text;
  text << "ranks " << parallel.tensor_parallel_size << 'x' << parallel.pipeline_parallel_size
       << '\n';
  for (const KVCacheGroup& group : cache.groups) {
    text << "group\n";
    for (std::size_t i = 0; i < group.layers.size(); ++i) {
      const KVCacheSpec& spec = group.layer_spec(i);
      text << group.layers[i] << ' ' << spec.kind_name() << ' ' << spec.block_size << ' '
           << cache.page_bytes[i];
      if (const TokenShape* const token = spec.token())
        text << ' ' << token->num_kv_heads << ' ' << token->head_dim << ' ' << token->head_dim_v
             << ' ' << static_cast<int>(token->dtype) << ' ' << token->tokens_per_state << ' '
             << token->scale_bytes;
      text << '\n';
    }
  }
  return text.str();
}

BlockOrigin block_origin(const std::string& model_identity, const KVCacheConfig& cache,
                         const ParallelConfig& parallel) {
  return xxh3_128(digest_of_origin(model_identity, cache, parallel) + "rank " +
                  std::to_string(parallel.rank));
}

std::string origin_folder(const std::string& model_identity, const KVCacheConfig& cache,
                          const ParallelConfig& parallel) {
  return to_hex(xxh3_128(digest_of_origin(model_identity, cache, parallel))) + "_r" +
         std::to_string(parallel.rank);
}

}  // namespace troupe
