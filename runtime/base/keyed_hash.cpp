#include "runtime/base/keyed_hash.hpp"

#include <array>
#include <bit>
#include <cstring>

#include "runtime/base/secret.hpp"

namespace troupe {
namespace {

using State = std::array<std::uint64_t, 4>;

State draw_initial_state() {
  std::array<std::uint64_t, 2> key;
  fill_random(std::span(reinterpret_cast<std::uint8_t*>(key.data()), sizeof key));
  return {key[0] ^ 0x736f6d6570736575ULL, key[1] ^ 0x646f72616e646f6dULL,
          key[0] ^ 0x6c7967656e657261ULL, key[1] ^ 0x7465646279746573ULL};
}

void mix(State& v) noexcept {
  v[0] += v[1];
  v[1] = std::rotl(v[1], 13) ^ v[0];
  v[0] = std::rotl(v[0], 32);
  v[2] += v[3];
  v[3] = std::rotl(v[3], 16) ^ v[2];
  v[0] += v[3];
  v[3] = std::rotl(v[3], 21) ^ v[0];
  v[2] += v[1];
  v[1] = std::rotl(v[1], 17) ^ v[2];
  v[2] = std::rotl(v[2], 32);
}

}  // namespace

std::uint64_t keyed_hash(std::string_view bytes) noexcept {
  static const State initial = draw_initial_state();
  State v = initial;
  const auto take = [&v](std::uint64_t word) {
    v[3] ^= word;
    mix(v);
    v[0] ^= word;
  };
  std::uint64_t last = std::uint64_t{bytes.size()} << 56;
  while (bytes.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    take(word);
    bytes.remove_prefix(8);
  }
  std::uint64_t rest = 0;
  if (!bytes.empty()) std::memcpy(&rest, bytes.data(), bytes.size());
  last |= rest;
  take(last);
  v[2] ^= 0xFF;
  for (int i = 0; i < 3; ++i) mix(v);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

}  // namespace troupe
