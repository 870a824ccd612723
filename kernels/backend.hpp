#pragma once
// Selection of kernels: the CPU's instruction sets, and what a model needs to call kernels.

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/ops.hpp"

namespace troupe {

/// Instruction sets with their own kernels, each a superset of the previous ones.
enum class Isa : std::uint8_t {
  kScalar,  ///< plain C++: the reference
  kAvx2,    ///< AVX2, FMA, F16C
  kAvx512,  ///< AVX-512 F, BW, DQ, VL, VNNI; and AVX512_BF16 where it is faster
  kAmx,     ///< kAvx512 with AVX512_BF16, and AMX tiles (bf16, int8)
};

/// "scalar", "avx2", "avx512", "amx".
[[nodiscard]] std::string_view to_string(Isa isa) noexcept;

/// The largest set that the CPU and the operating system support.
[[nodiscard]] Isa detect_isa() noexcept;

/// Why the set cannot be used here ("the CPU has no AVX512_VNNI"); empty if it can.
[[nodiscard]] std::string why_unavailable(Isa isa);

struct IsaChoice {
  Isa isa = Isa::kScalar;
  std::string error;  ///< not empty: why the name is invalid or the set cannot be used
};

/// The set of that name; "" and "auto" are detect_isa().
[[nodiscard]] IsaChoice choose_isa(std::string_view name);

/// The kernels for an instruction set. Pre: why_unavailable(isa) is empty.
[[nodiscard]] const OpTable* cpu_ops(Isa isa) noexcept;

/// What a model runs on: backend.ops->rms_norm(backend.context, {...}).
struct Backend {
  const OpTable* ops = nullptr;
  OpContext context;
};

}  // namespace troupe
