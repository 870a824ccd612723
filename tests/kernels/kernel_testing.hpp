#pragma once
// What the kernel tests share: the instruction sets present, matrices of random numbers, packed
// weights.

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.hpp"
#include "kernels/thread_pool.hpp"

namespace troupe {

#if defined(TROUPE_X86_KERNELS)
namespace avx2 {
const OpTable& op_table() noexcept;
}
namespace avx512 {
const OpTable& op_table() noexcept;
}
namespace avx512_bf16 {
const OpTable& op_table() noexcept;
}
namespace amx_emulated {
const OpTable& op_table() noexcept;
}
#endif

namespace testing {

/// Every table that runs on this CPU: scalar, avx2 and avx512 without and with what not all CPUs of
/// that set have, AMX, and AMX with emulated tiles. Says once which are missing.
inline const std::vector<const OpTable*>& all_tables() {
  static const std::vector<const OpTable*> tables = [] {
    std::vector<const OpTable*> found;
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
      const std::string reason = why_unavailable(isa);
      if (reason.empty()) {
        found.push_back(cpu_ops(isa));
      } else {
        BOOST_TEST_MESSAGE("not tested: " << to_string(isa) << ", " << reason);
      }
    }
#if defined(TROUPE_X86_KERNELS)
    if (why_unavailable(Isa::kAvx2).empty() && cpu_ops(Isa::kAvx2) != &avx2::op_table())
      found.push_back(&avx2::op_table());
#endif
#if defined(TROUPE_AVX512_KERNELS)
    if (why_unavailable(Isa::kAvx512).empty() && __builtin_cpu_supports("avx512bf16") != 0) {
      const bool takes_bf16 = cpu_ops(Isa::kAvx512) == &avx512_bf16::op_table();
      found.push_back(takes_bf16 ? &avx512::op_table() : &avx512_bf16::op_table());
      found.push_back(&amx_emulated::op_table());
    }
#endif
    return found;
  }();
  return tables;
}

/// Whether the table rounds activations to bf16 in ComputeMode::kBF16.
inline bool has_bf16_unit(const OpTable& ops) {
  const std::string name = ops.name;
  return name == "avx512_bf16" || name.starts_with("amx");
}

inline ThreadPool& pool_of(int num_threads) {
  static ThreadPool pools[] = {ThreadPool(1), ThreadPool(2), ThreadPool(4)};
  return pools[num_threads / 2];
}

/// A context with `num_threads` (1, 2 or 4) threads and that much workspace.
class TestContext {
 public:
  explicit TestContext(std::int64_t workspace_bytes = 0, int num_threads = 2)
      : memory_(static_cast<std::size_t>(workspace_bytes) + 64) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    context_.workspace = {memory_.data() + (64 - address % 64),
                          static_cast<std::size_t>(workspace_bytes)};
    context_.pool = &pool_of(num_threads);
  }
  operator const OpContext&() const { return context_; }

 private:
  std::vector<std::byte> memory_;
  OpContext context_;
};

using Floats = std::vector<float>;

inline Floats random_floats(std::int64_t n, std::uint32_t seed, float size = 1.0f) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-size, size);
  Floats values(static_cast<std::size_t>(n));
  for (float& value : values) value = uniform(random);
  return values;
}

/// A row with numbers of every size and sign, and the values where activations have their corners.
inline Floats activation_inputs(std::int64_t n) {
  Floats x = random_floats(n, 14, 12.0f);
  const Floats corners = {0.0f,   -0.0f, 1e-30f, -1e-30f, 0.624f,  0.626f, -0.625f, 20.0f,
                          -20.0f, 88.0f, -88.0f, 200.0f,  -200.0f, 1e-3f,  -1e-3f};
  for (std::size_t i = 0; i < std::min(x.size(), corners.size()); ++i) x[i] = corners[i];
  return x;
}

inline double exact_silu(double x) { return x / (1.0 + std::exp(-x)); }
inline double exact_gelu_tanh(double x) {
  return x / 2 * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

inline Matrix matrix(Floats& values, std::int64_t rows, std::int64_t cols) {
  return {values.data(), rows, cols};
}
inline ConstMatrix matrix(const Floats& values, std::int64_t rows, std::int64_t cols) {
  return {values.data(), rows, cols};
}
/// A view with one head for each row.
inline Heads heads(Floats& values, std::int64_t tokens, std::int64_t num_heads, std::int64_t dim) {
  return {values.data(), tokens, num_heads, dim, num_heads * dim};
}
inline ConstHeads heads(const Floats& values, std::int64_t tokens, std::int64_t num_heads,
                        std::int64_t dim) {
  return {values.data(), tokens, num_heads, dim, num_heads * dim};
}

inline std::uint16_t bf16_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float bf16_value(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
/// An independent f16: through the number's exponent.
inline std::uint16_t f16_bits(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::fabs(static_cast<double>(value));
  int exponent = size == 0 ? -14 : std::max(-14, std::ilogb(size));
  auto steps = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  if (steps == 2048) {
    steps = 1024;
    ++exponent;
  }
  if (exponent > 15) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (steps < 1024) return static_cast<std::uint16_t>(sign | steps);
  return static_cast<std::uint16_t>(sign | ((exponent + 15) << 10) | (steps - 1024));
}
inline float f16_value(std::uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  const double size =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>((half & 0x8000) != 0 ? -size : size);
}

/// Random numbers as a checkpoint stores them, and what they are worth.
struct StoredWeights {
  StoredWeights(ElementType type, std::int64_t rows, std::int64_t cols, std::uint32_t seed)
      : values(random_floats(rows * cols, seed)), type_(type), rows_(rows), cols_(cols) {
    for (float& value : values) {
      if (type == ElementType::kBF16) {
        halves_.push_back(bf16_bits(value));
        value = bf16_value(halves_.back());
      } else if (type == ElementType::kF16) {
        halves_.push_back(f16_bits(value));
        value = f16_value(halves_.back());
      }
    }
  }
  [[nodiscard]] StoredMatrix view() const {
    const void* data = halves_.empty() ? static_cast<const void*>(values.data()) : halves_.data();
    return {data, type_, rows_, cols_};
  }
  Floats values;

 private:
  std::vector<std::uint16_t> halves_;
  ElementType type_;
  std::int64_t rows_;
  std::int64_t cols_;
};

/// Memory for a packed matrix, zero filled, aligned to 64.
class PackedStore {
 public:
  PackedStore(const OpTable& ops, const WeightSpec& spec)
      : spec_(spec), memory_(static_cast<std::size_t>(ops.packed_bytes(spec)) + 64) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    first_ = memory_.data() + (64 - address % 64);
  }
  PackedStore(const OpTable& ops, const WeightSpec& spec, const StoredMatrix& stored)
      : PackedStore(ops, spec) {
    ops.pack_rows(spec, stored, 0, first_);
  }
  [[nodiscard]] std::byte* data() { return first_; }
  [[nodiscard]] PackedWeight weight() const { return {spec_, first_}; }

 private:
  WeightSpec spec_;
  std::vector<std::byte> memory_;
  std::byte* first_;
};

inline bool same_bits(const float* a, const float* b, std::int64_t n) {
  return std::memcmp(a, b, static_cast<std::size_t>(n) * sizeof(float)) == 0;
}

/// The largest |got - want| / (1 + |want|).
inline double worst_error(const Floats& got, const std::vector<double>& want) {
  BOOST_REQUIRE(got.size() == want.size());
  double worst = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error =
        std::fabs(static_cast<double>(got[i]) - want[i]) / (1.0 + std::fabs(want[i]));
    worst =
        std::isfinite(got[i]) ? std::max(worst, error) : std::numeric_limits<double>::infinity();
  }
  return worst;
}

}  // namespace testing
}  // namespace troupe
