#include "runtime/kv_transfer/lmcache/python_hash.hpp"

#include <bit>
#include <charconv>
#include <cstddef>
#include <vector>

namespace troupe::lmcache {
namespace {

constexpr std::uint64_t kModulus = (std::uint64_t{1} << 61) - 1;
constexpr std::uint64_t kPrime1 = 11400714785074694791U;
constexpr std::uint64_t kPrime2 = 14029467366897019727U;
constexpr std::uint64_t kPrime5 = 2870177450012600261U;
constexpr std::uint64_t kTupleSuffix = kPrime5 ^ 3527539U;

}  // namespace

std::int64_t python_hash(PythonInt n) noexcept {
  const auto rest = static_cast<std::int64_t>(n.magnitude % kModulus);
  const std::int64_t hash = n.negative ? -rest : rest;
  return hash == -1 ? -2 : hash;  // -1 is CPython's error
}

std::int64_t python_hash_tuple(std::span<const std::int64_t> elements) noexcept {
  std::uint64_t sum = kPrime5;
  for (const std::int64_t element : elements) {
    sum += static_cast<std::uint64_t>(element) * kPrime2;
    sum = std::rotl(sum, 31) * kPrime1;
  }
  sum += elements.size() ^ kTupleSuffix;
  return sum == ~std::uint64_t{0} ? 1546275796 : static_cast<std::int64_t>(sum);
}

std::int64_t python_hash_integers(std::span<const std::int64_t> integers) {
  std::vector<std::int64_t> hashes;
  hashes.reserve(integers.size());
  for (const std::int64_t integer : integers) hashes.push_back(python_hash(PythonInt::of(integer)));
  return python_hash_tuple(hashes);
}

std::optional<PythonHashKey> python_hash_key(std::string_view seed) noexcept {
  std::uint32_t state = 0;
  const auto read = std::from_chars(seed.data(), seed.data() + seed.size(), state);
  if (read.ec != std::errc() || read.ptr != seed.data() + seed.size()) return std::nullopt;
  PythonHashKey key{};
  if (state == 0) return key;
  // CPython fills its secret with a linear congruential generator.
  for (std::size_t i = 0; i < 16; ++i) {
    state = state * 214013 + 2531011;
    key[i / 8] |= static_cast<std::uint64_t>((state >> 16) & 0xff) << (8 * (i % 8));
  }
  return key;
}

std::int64_t python_hash_text(std::string_view text, const PythonHashKey& key) noexcept {
  if (text.empty()) return 0;
  std::uint64_t v0 = key[0] ^ 0x736f6d6570736575U;
  std::uint64_t v1 = key[1] ^ 0x646f72616e646f6dU;
  std::uint64_t v2 = key[0] ^ 0x6c7967656e657261U;
  std::uint64_t v3 = key[1] ^ 0x7465646279746573U;
  const auto round = [&] {
    v0 += v1, v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0, v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32);
    v2 += v1, v0 += v3;
    v1 = std::rotl(v1, 17) ^ v2, v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  };
  const auto take = [&](std::uint64_t word) {
    v3 ^= word;
    round();
    v0 ^= word;
  };
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    word |= static_cast<std::uint64_t>(static_cast<unsigned char>(text[i])) << (8 * (i % 8));
    if (i % 8 != 7) continue;
    take(word);
    word = 0;
  }
  take(word | static_cast<std::uint64_t>(text.size()) << 56);
  v2 ^= 0xff;
  round(), round(), round();
  const auto hash = static_cast<std::int64_t>(v0 ^ v1 ^ v2 ^ v3);
  return hash == -1 ? -2 : hash;
}

}  // namespace troupe::lmcache
