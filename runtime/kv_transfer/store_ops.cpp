#include "runtime/kv_transfer/store_ops.hpp"

#include <cstring>

namespace troupe {
namespace {

class OpsWriter {
 public:
  template <class T>
  void put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void put(const std::string& text) {
    put(static_cast<std::uint32_t>(text.size()));
    text_ += text;
  }
  void put(const KeyedBlock& block) {
    text_.append(reinterpret_cast<const char*>(block.key.hash.bytes.data()),
                 block.key.hash.bytes.size());
    put(block.key.group);
    put(block.block);
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class OpsReader {
 public:
  explicit OpsReader(std::string_view text) : text_(text) {}
  template <class T>
  [[nodiscard]] bool get(T& value) {
    if (text_.size() < sizeof(value)) return false;
    std::memcpy(&value, text_.data(), sizeof(value));
    text_.remove_prefix(sizeof(value));
    return true;
  }
  [[nodiscard]] bool get(KeyedBlock& block) {
    return get(block.key.hash.bytes) && get(block.key.group) && get(block.block);
  }
  [[nodiscard]] bool get(std::string& text) {
    std::uint32_t size = 0;
    if (!get(size) || size > text_.size()) return false;
    text = text_.substr(0, size);
    text_.remove_prefix(size);
    return true;
  }
  /// Of elements that take at least so many bytes each.
  template <class T>
  [[nodiscard]] bool get_size(std::vector<T>& elements, std::size_t element_bytes) {
    std::uint32_t count = 0;
    if (!get(count) || count > text_.size() / element_bytes) return false;
    elements.resize(count);
    return true;
  }
  [[nodiscard]] bool at_end() const noexcept { return text_.empty(); }

 private:
  std::string_view text_;
};

constexpr std::size_t kBlockBytes = sizeof(BlockHash) + sizeof(std::int32_t) + sizeof(BlockId);
constexpr std::size_t kLoadBytes =
    sizeof(std::uint64_t) + sizeof(std::uint64_t) + sizeof(std::uint8_t) + sizeof(std::uint32_t);

}  // namespace

std::string pack_store_ops(const StoreOps& ops) {
  OpsWriter writer;
  writer.put(ops.oldest_load);
  writer.put(static_cast<std::uint32_t>(ops.loads.size()));
  for (const BlockLoad& load : ops.loads) {
    writer.put(load.number);
    writer.put(value(load.id));
    writer.put(static_cast<std::uint8_t>(load.is_layered));
    writer.put(static_cast<std::uint32_t>(load.blocks.size()));
    for (const KeyedBlock& block : load.blocks) writer.put(block);
  }
  writer.put(static_cast<std::uint32_t>(ops.ops.size()));
  for (const StoreOp& op : ops.ops) {
    writer.put(static_cast<std::uint8_t>(op.kind));
    writer.put(op.tier);
    writer.put(op.block);
  }
  writer.put(ops.folder);
  return writer.take();
}

std::optional<StoreOps> unpack_store_ops(std::string_view text) {
  StoreOps ops;
  OpsReader reader(text);
  if (!reader.get(ops.oldest_load) || !reader.get_size(ops.loads, kLoadBytes)) return std::nullopt;
  for (BlockLoad& load : ops.loads) {
    std::uint64_t id = 0;
    std::uint8_t is_layered = 0;
    if (!reader.get(load.number) || !reader.get(id) || !reader.get(is_layered) || is_layered > 1 ||
        !reader.get_size(load.blocks, kBlockBytes))
      return std::nullopt;
    load.id = RequestId{id};
    load.is_layered = is_layered == 1;
    for (KeyedBlock& block : load.blocks)
      if (!reader.get(block)) return std::nullopt;
  }
  if (!reader.get_size(ops.ops, 2 + kBlockBytes)) return std::nullopt;
  for (StoreOp& op : ops.ops) {
    std::uint8_t kind = 0;
    if (!reader.get(kind) || kind > static_cast<std::uint8_t>(StoreOpKind::kImport) ||
        !reader.get(op.tier) || !reader.get(op.block))
      return std::nullopt;
    op.kind = static_cast<StoreOpKind>(kind);
  }
  if (!reader.get(ops.folder) || !reader.at_end()) return std::nullopt;
  return ops;
}

}  // namespace troupe
