#include "runtime/kv_transfer/kept_piece.hpp"

#include <cstring>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/models/half_floats.hpp"

namespace troupe {
namespace {

void write_numbers(bool is_narrow, const float* from, std::int64_t count, std::byte* to) {
  if (!is_narrow) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint16_t bits = narrow_to_bf16(from[i]);
    std::memcpy(to + 2 * i, &bits, sizeof bits);
  }
}

void read_numbers(bool is_narrow, const std::byte* from, std::int64_t count, float* to) {
  if (!is_narrow) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, sizeof bits);
    to[i] = widen_bf16(bits);
  }
}

/// Of a file, behind the blob's header: then of each layer its number of bytes, and these.
struct PieceFileHead {
  std::int32_t num_tokens = 0;
  std::int32_t number_bytes = 0;
  std::uint64_t num_layers = 0;
};
static_assert(sizeof(PieceFileHead) == 16);

Error corrupt_piece(const std::string& what) { return {ErrorCode::kCorrupt, what, {}}; }

}  // namespace

std::int64_t kept_number_bytes(DType cache_dtype) noexcept {
  return cache_dtype == DType::kF32 ? 4 : 2;
}

void KeptPiece::write(std::int32_t layer, std::int32_t offset, std::int64_t size, const float* k,
                      const float* v) {
  const auto index = static_cast<std::size_t>(layer);
  const std::int64_t number_bytes = is_narrow_ ? 2 : 4;
  if (layers_.size() <= index) layers_.resize(index + 1);
  layers_[index].resize(static_cast<std::size_t>(2 * num_tokens_ * size * number_bytes));
  std::byte* const to = layers_[index].data() + 2 * offset * size * number_bytes;
  write_numbers(is_narrow_, k, size, to);
  write_numbers(is_narrow_, v, size, to + size * number_bytes);
}

void KeptPiece::read(std::int32_t layer, std::int32_t offset, std::int64_t size, float* k,
                     float* v) const {
  const std::int64_t number_bytes = is_narrow_ ? 2 : 4;
  CHECK(std::cmp_less(layer, layers_.size()) && offset < num_tokens_, layer, offset);
  const std::vector<std::byte>& numbers = layers_[static_cast<std::size_t>(layer)];
  CHECK(std::cmp_equal(numbers.size(), 2 * num_tokens_ * size * number_bytes), layer,
        numbers.size());
  const std::byte* const from = numbers.data() + 2 * offset * size * number_bytes;
  read_numbers(is_narrow_, from, size, k);
  if (v != nullptr) read_numbers(is_narrow_, from + size * number_bytes, size, v);
}

std::size_t KeptPiece::num_bytes() const noexcept {
  std::size_t count = 0;
  for (const std::vector<std::byte>& layer : layers_) count += layer.size();
  return count;
}

Blob KeptPiece::pack(const BlockOrigin& origin, const BlockHash& key) const {
  Blob blob =
      make_blob(origin, {key, num_tokens_},
                sizeof(PieceFileHead) + sizeof(std::uint64_t) * layers_.size() + num_bytes());
  std::byte* to = blob_content(blob).data();
  const auto append = [&to](const void* from, std::size_t count) {
    if (count > 0) std::memcpy(to, from, count);
    to += count;
  };
  const PieceFileHead head{num_tokens_, is_narrow_ ? 2 : 4, layers_.size()};
  append(&head, sizeof(head));
  for (const std::vector<std::byte>& layer : layers_) {
    const std::uint64_t count = layer.size();
    append(&count, sizeof(count));
    append(layer.data(), layer.size());
  }
  seal_blob(blob);
  return blob;
}

Result<std::shared_ptr<KeptPiece>> KeptPiece::unpack(const Blob& blob, const BlockOrigin& origin,
                                                     const StoreKey& key, bool is_narrow) {
  if (blob.size() < sizeof(BlobHeader) + sizeof(PieceFileHead))
    return corrupt_piece("size is " + std::to_string(blob.size()));
  RETURN_IF_ERROR(check_blob(blob, origin, key, blob.size() - sizeof(BlobHeader)));
  std::span<const std::byte> rest = blob_content(blob);
  PieceFileHead head;
  std::memcpy(&head, rest.data(), sizeof(head));
  rest = rest.subspan(sizeof(head));
  if (head.num_tokens != key.group || head.num_tokens <= 0)
    return corrupt_piece("num_tokens is " + std::to_string(head.num_tokens) + ", expected " +
                         std::to_string(key.group));
  if (head.number_bytes != (is_narrow ? 2 : 4))
    return corrupt_piece("number_bytes is " + std::to_string(head.number_bytes));
  auto piece = std::make_shared<KeptPiece>(head.num_tokens, is_narrow);
  for (std::uint64_t layer = 0; layer < head.num_layers; ++layer) {
    std::uint64_t count = 0;
    if (rest.size() < sizeof(count)) return corrupt_piece("num_layers is too large");
    std::memcpy(&count, rest.data(), sizeof(count));
    rest = rest.subspan(sizeof(count));
    if (count > rest.size())
      return corrupt_piece("layer " + std::to_string(layer) + " has " + std::to_string(count) +
                           " bytes");
    piece->layers_.emplace_back(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(count));
    rest = rest.subspan(static_cast<std::size_t>(count));
  }
  if (!rest.empty()) return corrupt_piece("num_layers is too small");
  return piece;
}

}  // namespace troupe
