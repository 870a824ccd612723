// ECMemoryConnector: outputs in the memory of this process.

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>

#include "runtime/config/connector_config.hpp"
#include "runtime/ec_transfer/connectors.hpp"

namespace troupe {
namespace {

/// Owns outputs of any encoders, the latest used last to go. Thread-safe.
class MemoryPool {
 public:
  void allow(std::size_t max_bytes) {
    const std::lock_guard lock(mutex_);
    max_bytes_ = std::max(max_bytes_, max_bytes);
  }

  /// nullptr: it is not there.
  std::shared_ptr<const std::vector<float>> find(const std::string& key, OutputShape& shape) {
    const std::lock_guard lock(mutex_);
    const auto found = outputs_.find(key);
    if (found == outputs_.end()) return nullptr;
    by_use_.splice(by_use_.end(), by_use_, found->second.use);
    shape = found->second.shape;
    return found->second.values;
  }

  Result<void> put(const std::string& key, const OutputShape& shape,
                   std::span<const float> values) {
    auto copy = std::make_shared<const std::vector<float>>(values.begin(), values.end());
    const std::lock_guard lock(mutex_);
    if (shape.num_bytes() > max_bytes_)
      return Error{ErrorCode::kTooLarge, "it has " + std::to_string(shape.num_bytes()) +
                                             " bytes, ec_buffer_size is " +
                                             std::to_string(max_bytes_)};
    if (const auto old = outputs_.find(key); old != outputs_.end()) remove(old);
    while (num_bytes_ + shape.num_bytes() > max_bytes_) remove(outputs_.find(by_use_.front()));
    num_bytes_ += shape.num_bytes();
    outputs_.emplace(key, Output{shape, std::move(copy), by_use_.insert(by_use_.end(), key)});
    return {};
  }

 private:
  struct Output {
    OutputShape shape;
    std::shared_ptr<const std::vector<float>> values;
    std::list<std::string>::iterator use;
  };
  using Outputs = std::unordered_map<std::string, Output>;

  void remove(Outputs::iterator output) {
    num_bytes_ -= output->second.shape.num_bytes();
    by_use_.erase(output->second.use);
    outputs_.erase(output);
  }

  std::mutex mutex_;
  std::size_t max_bytes_ = 0;
  std::size_t num_bytes_ = 0;
  std::list<std::string> by_use_;  // keys, the latest used one last
  Outputs outputs_;
};

std::shared_ptr<MemoryPool> memory_pool(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<MemoryPool>> pools;
  const std::lock_guard lock(mutex);
  std::weak_ptr<MemoryPool>& known = pools[name];
  std::shared_ptr<MemoryPool> pool = known.lock();
  if (pool == nullptr) known = pool = std::make_shared<MemoryPool>();
  return pool;
}

class MemoryStore final : public OutputStore {
 public:
  MemoryStore(std::shared_ptr<MemoryPool> pool, std::string encoder_key)
      : pool_(std::move(pool)), encoder_key_(std::move(encoder_key)) {}

  bool has(const std::string& identifier) override {
    OutputShape shape;
    return pool_->find(key_of(identifier), shape) != nullptr;
  }
  Result<StoredOutput> load(const std::string& identifier, const OutputShape& shape) override {
    OutputShape found;
    const auto values = pool_->find(key_of(identifier), found);
    if (values == nullptr) return Error{ErrorCode::kNotFound, "it is not in the pool (any more)"};
    if (found != shape)
      return Error{ErrorCode::kCorrupt, "it has the shape [" + std::to_string(found.num_rows) +
                                            ", " + std::to_string(found.hidden_size) +
                                            "], expected [" + std::to_string(shape.num_rows) +
                                            ", " + std::to_string(shape.hidden_size) + "]"};
    return StoredOutput{values, *values};
  }
  Result<void> save(const std::string& identifier, const OutputShape& shape,
                    std::span<const float> values) override {
    return pool_->put(key_of(identifier), shape, values);
  }
  bool is_immediate() const noexcept override { return true; }

 private:
  [[nodiscard]] std::string key_of(const std::string& identifier) const {
    return encoder_key_ + '\n' + identifier;
  }

  std::shared_ptr<MemoryPool> pool_;
  std::string encoder_key_;
};

}  // namespace

Result<std::shared_ptr<OutputStore>> open_memory_store(const ECConnectorContext& context) {
  ConnectorExtraConfig extra(ConnectorKind::kEC, context.config);
  ASSIGN_OR_RETURN(const std::string name, extra.take_text("pool", "default"));
  RETURN_IF_ERROR(extra.take_seconds(kLookupTimeoutKey, 0));
  RETURN_IF_ERROR(extra.check_empty());
  std::shared_ptr<MemoryPool> pool = memory_pool(name);
  pool->allow(static_cast<std::size_t>(context.config.buffer_size));
  return std::shared_ptr<OutputStore>(
      std::make_shared<MemoryStore>(std::move(pool), context.encoder_key));
}

}  // namespace troupe
