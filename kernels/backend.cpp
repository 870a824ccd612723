#include "kernels/backend.hpp"

#include "kernels/device_table.hpp"

#if defined(TROUPE_X86_KERNELS)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace troupe {

namespace scalar {
const OpTable& op_table() noexcept;
}
#if defined(TROUPE_X86_KERNELS)
namespace avx2 {
const OpTable& op_table() noexcept;
}
namespace avx2_vnni {
const OpTable& op_table() noexcept;
}
namespace avx512 {
const OpTable& op_table() noexcept;
}
namespace avx512_bf16 {
const OpTable& op_table() noexcept;
}
namespace amx {
const OpTable& op_table() noexcept;
}
#endif
#if defined(TROUPE_CUDA_KERNELS)
namespace cuda {
const DeviceTable& device_table() noexcept;
}
#endif
#if defined(TROUPE_CUDA_EMULATION)
namespace cuda_emulated {
const DeviceTable& device_table() noexcept;
}
#endif

namespace {

constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

#if defined(TROUPE_X86_KERNELS)

/// Whether this build has avx2_vnni and amx; sanitized builds do not (kernels/CMakeLists.txt).
#if defined(TROUPE_SANITIZED_KERNELS)
constexpr bool kHasAllTables = false;
#else
constexpr bool kHasAllTables = true;
#endif

/// Whether it has avx512 and avx512_bf16, which sanitized builds have if the CPU that built them
/// can run them.
#if defined(TROUPE_AVX512_KERNELS)
constexpr bool kHasAvx512Tables = true;
#else
constexpr bool kHasAvx512Tables = false;
#endif

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

/// The register states that the operating system saves (XCR0); 0 without XSAVE.
std::uint64_t saved_states() {
  if ((cpuid(1, 0).ecx & (1u << 27)) == 0) return 0;
  unsigned low = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

constexpr std::uint64_t kAvxStates = 0x6;
constexpr std::uint64_t kAvx512States = 0xe6;
constexpr std::uint64_t kTileStates = 0x60000;

bool has_bit(unsigned bits, int index) { return ((bits >> index) & 1u) != 0; }
[[maybe_unused]] bool has_avx_vnni() { return has_bit(cpuid(7, 1).eax, 4); }
bool has_avx512_bf16() { return has_bit(cpuid(7, 1).eax, 5); }

/// Whether AVX512_BF16 is faster than f32: on AMD's CPUs it has twice the rate, on Intel's (which
/// have tiles for it, if the machine exposes them) half of it.
bool is_avx512_bf16_fast() {
  const Registers vendor = cpuid(0, 0);
  constexpr Registers kAmd = {.ebx = 0x68747541, .ecx = 0x444d4163, .edx = 0x69746e65};
  return vendor.ebx == kAmd.ebx && vendor.ecx == kAmd.ecx && vendor.edx == kAmd.edx;
}

/// Tile data is disabled for a process until it requests it (Linux, because of the size of the
/// state).
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  static const bool kGranted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return kGranted;
}

std::string why_unavailable_here(Isa isa) {
  const Registers leaf1 = cpuid(1, 0);
  const Registers leaf7 = cpuid(7, 0);
  const std::uint64_t states = saved_states();
  if (!has_bit(leaf7.ebx, 5)) return "the CPU has no AVX2";
  if (!has_bit(leaf1.ecx, 12)) return "the CPU has no FMA";
  if (!has_bit(leaf1.ecx, 29)) return "the CPU has no F16C";
  if ((states & kAvxStates) != kAvxStates)
    return "the operating system does not save AVX registers";
  if (isa == Isa::kAvx2) return {};
  if (!has_bit(leaf7.ebx, 16)) return "the CPU has no AVX512F";
  if (!has_bit(leaf7.ebx, 30)) return "the CPU has no AVX512BW";
  if (!has_bit(leaf7.ebx, 17)) return "the CPU has no AVX512DQ";
  if (!has_bit(leaf7.ebx, 31)) return "the CPU has no AVX512VL";
  if (!has_bit(leaf7.ecx, 11)) return "the CPU has no AVX512_VNNI";
  if ((states & kAvx512States) != kAvx512States) {
    return "the operating system does not save AVX-512 registers";
  }
  if (!kHasAvx512Tables) return "the CPU that built this with a sanitizer has no AVX-512";
  if (isa == Isa::kAvx512) return {};
  if (!kHasAllTables) return "builds with a sanitizer have no AMX kernels";
  if (!has_avx512_bf16()) return "the CPU has no AVX512_BF16";
  if (!has_bit(leaf7.edx, 24)) return "the CPU has no AMX_TILE";
  if (!has_bit(leaf7.edx, 22)) return "the CPU has no AMX_BF16";
  if (!has_bit(leaf7.edx, 25)) return "the CPU has no AMX_INT8";
  if ((states & kTileStates) != kTileStates) return "the operating system does not save AMX tiles";
  if (!may_use_tiles()) return "the operating system does not let this process use AMX tiles";
  return {};
}

#else

std::string why_unavailable_here(Isa) { return "this build has no x86 kernels"; }

#endif

}  // namespace

std::string_view to_string(Isa isa) noexcept {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

std::string why_unavailable(Isa isa) {
  return isa == Isa::kScalar ? std::string() : why_unavailable_here(isa);
}

Isa detect_isa() noexcept {
  Isa best = Isa::kScalar;
  for (const Isa isa : kAllIsas) {
    if (why_unavailable(isa).empty()) best = isa;
  }
  return best;
}

IsaChoice choose_isa(std::string_view name) {
  if (name.empty() || name == "auto") return {.isa = detect_isa(), .error = {}};
  for (const Isa isa : kAllIsas) {
    if (name != to_string(isa)) continue;
    const std::string reason = why_unavailable(isa);
    if (reason.empty()) return {.isa = isa, .error = {}};
    return {.error = "instruction set " + std::string(name) + " cannot be used: " + reason};
  }
  return {.error = "unknown instruction set '" + std::string(name) +
                   "', expected auto, scalar, avx2, avx512 or amx"};
}

const OpTable* cpu_ops(Isa isa) noexcept {
#if defined(TROUPE_X86_KERNELS)
  switch (isa) {
    case Isa::kAmx:
      if constexpr (kHasAllTables) return &amx::op_table();
      break;
    case Isa::kAvx512:
      if constexpr (kHasAvx512Tables) {
        return has_avx512_bf16() && is_avx512_bf16_fast() ? &avx512_bf16::op_table()
                                                          : &avx512::op_table();
      }
      break;
    case Isa::kAvx2:
      if constexpr (kHasAllTables) {
        if (has_avx_vnni()) return &avx2_vnni::op_table();
      }
      return &avx2::op_table();
    case Isa::kScalar:
      break;
  }
#endif
  static_cast<void>(isa);
  return &scalar::op_table();
}

const DeviceTable* cuda_device() noexcept {
#if defined(TROUPE_CUDA_KERNELS)
  return &cuda::device_table();
#else
  return nullptr;
#endif
}

const DeviceTable* cuda_emulated_device() noexcept {
#if defined(TROUPE_CUDA_EMULATION)
  return &cuda_emulated::device_table();
#else
  return nullptr;
#endif
}

}  // namespace troupe
