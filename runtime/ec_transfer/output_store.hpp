#pragma once
// Where an EC connector keeps outputs of encoders.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/result.hpp"

namespace troupe {

/// Of an output: [num_rows, hidden_size], float32.
struct OutputShape {
  std::int64_t num_rows = 0;
  std::int64_t hidden_size = 0;

  [[nodiscard]] std::size_t num_values() const noexcept {
    return static_cast<std::size_t>(num_rows * hidden_size);
  }
  [[nodiscard]] std::size_t num_bytes() const noexcept { return num_values() * sizeof(float); }
  bool operator==(const OutputShape&) const = default;
};

/// An output in memory, which `owner` keeps; constant.
struct StoredOutput {
  std::shared_ptr<const void> owner;
  std::span<const float> values;
};

/// Stores outputs by the identifiers of their items, for one kind of encoder: outputs of others are
/// not found. Thread-safe. Other users of the store may remove outputs at any time.
class OutputStore {
 public:
  virtual ~OutputStore() = default;
  /// Whether load is likely to find it. Takes as long as the store takes to answer.
  [[nodiscard]] virtual bool has(const std::string& identifier) = 0;
  /// Errors: kNotFound; kCorrupt, it is not such an output, naming where it lies, what is expected
  /// and what was found; kIo.
  [[nodiscard]] virtual Result<StoredOutput> load(const std::string& identifier,
                                                  const OutputShape& shape) = 0;
  /// Replaces an existing output atomically: a reader gets either the old or the new one.
  /// Errors: kIo; kTooLarge, it has no room; kInvalidArgument, the identifier cannot be a name.
  /// Pre: values.size() == shape.num_values().
  virtual Result<void> save(const std::string& identifier, const OutputShape& shape,
                            std::span<const float> values) = 0;
  /// Whether it is in this process's memory: calls return at once.
  [[nodiscard]] virtual bool is_immediate() const noexcept { return false; }
  /// Whether what is elsewhere must be fetched before it is loaded, as over a network.
  [[nodiscard]] virtual bool needs_fetch() const noexcept { return false; }
  /// Brings an output where load finds it at once. Takes as long as the network takes. Errors:
  /// those of load; kUnavailable, no answer.
  virtual Result<void> fetch(const std::string&, const OutputShape&) { return {}; }
};

}  // namespace troupe
