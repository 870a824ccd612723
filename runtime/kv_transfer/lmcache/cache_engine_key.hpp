#pragma once
// The keys of LMCache's remote stores, as text:
//
//   <model>@<world size>@<worker>@<hash>@<dtype>[@<layer>][@<tag>%<value>]...

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/lmcache/python_hash.hpp"
#include "runtime/kv_transfer/lmcache/tier_index.hpp"

namespace troupe::lmcache {

struct CacheEngineKey {
  std::string model;
  std::int32_t world_size = 1;
  std::int32_t worker = 0;
  PythonInt hash;
  std::string dtype;                  ///< "bfloat16", see tensor_dtype_names
  std::optional<std::int32_t> layer;  ///< of a layer's part of the chunk
  std::vector<std::pair<std::string, std::string>> tags;
  bool operator==(const CacheEngineKey&) const = default;

  [[nodiscard]] std::string text() const;
  /// The value of a tag; null: it has none.
  [[nodiscard]] const std::string* tag(std::string_view name) const noexcept;
};

/// The key of an engine's chunk, of the model, world size, worker and type of `engine`.
/// `signed_hashes`: its hashes are Python's.
[[nodiscard]] std::string chunk_key(CacheEngineKey engine, const ChunkId& id, bool signed_hashes);

/// Errors: kInvalidArgument naming the field and its value.
[[nodiscard]] Result<CacheEngineKey> parse_cache_engine_key(std::string_view text);

/// Hexadecimal digits without leading zeros, "-" first if it is negative.
[[nodiscard]] std::string to_hex(PythonInt hash);

/// The name of a type in keys: "torch.float16" or "float16" is "half". Errors: kInvalidArgument.
[[nodiscard]] Result<std::string> key_dtype(std::string_view dtype);

/// Tags of a request: entries "lmcache.tag.<name>" of its configuration.
inline constexpr std::string_view kTagPrefix = "lmcache.tag.";

}  // namespace troupe::lmcache
