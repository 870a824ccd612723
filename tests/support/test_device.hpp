#pragma once
// The device on which the tests of the CUDA kernels compute: the emulated one, or with
// TROUPE_TEST_DEVICE=cuda in the environment a GPU.

#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/device_table.hpp"

namespace troupe::testing {

/// Its name among the values of --device.
inline std::string test_device() {
  const char* name = std::getenv("TROUPE_TEST_DEVICE");
  return name == nullptr ? "cuda-emulated" : name;
}

/// Whether it is a GPU.
inline bool tests_gpu() { return test_device() == "cuda"; }

/// Why the kernels cannot run on a GPU here; empty: they can.
inline std::string why_no_gpu() {
  const DeviceTable* table = cuda_device();
  return table == nullptr ? "this build has no CUDA kernels" : table->why_unavailable();
}

/// A global fixture: without the GPU that is asked for it ends the program before the first test.
/// CTest shows this status as skipped (tests/CMakeLists.txt), so that it does not count as a
/// success.
struct NeedsTestDevice {
  NeedsTestDevice() {
    constexpr int kSkipped = 77;
    if (!tests_gpu() || why_no_gpu().empty()) return;
    std::printf("skipped: %s\n", why_no_gpu().c_str());
    std::exit(kSkipped);
  }
};

}  // namespace troupe::testing
