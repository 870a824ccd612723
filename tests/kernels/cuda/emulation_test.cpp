// The emulation of CUDA's language and runtime: what it computes, and what it finds.

#include "kernels/cuda_emulation/cuda_runtime.h"

#include <numeric>
#include <vector>

#include "kernels/cuda_emulation/cuda_bf16.h"
#include "kernels/cuda_emulation/cuda_fp16.h"
#include "kernels/cuda_emulation/sanitizer.hpp"
#include "tests/kernels/kernel_testing.hpp"
#include "tests/kernels/thread_orders.hpp"

namespace troupe {
namespace {

using namespace testing;

constexpr unsigned kAllLanes = 0xffffffffu;

template <class F>
void kernel_of(F f) {
  f();
}

/// The error of the launch; empty: none.
template <class F>
std::string run(dim3 grid, dim3 block, const F& f, std::size_t dynamic_bytes = 0) {
  const cudaLaunchConfig_t config{
      .gridDim = grid, .blockDim = block, .dynamicSmemBytes = dynamic_bytes};
  cudaLaunchKernelEx(&config, kernel_of<F>, f);
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? std::string() : cudaGetErrorString(status);
}

std::string line_name(int line) { return "emulation_test.cpp:" + std::to_string(line); }

constexpr ThreadOrder kAllOrders[] = {ThreadOrder::kForward, ThreadOrder::kReversed,
                                      ThreadOrder::kRandom};

BOOST_AUTO_TEST_CASE(every_thread_of_every_block_runs_once_with_its_indices) {
  for (const ThreadOrder order : kAllOrders) {
    const InThreadOrder in_order(order);
    std::vector<int> visits(2 * 3 * 2 * 5 * 7 * 2);
    BOOST_TEST(run({2, 3, 2}, {5, 7, 2}, [&] {
                 const unsigned block =
                     blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
                 const unsigned thread =
                     threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
                 ++visits[block * 70 + thread];
               }) == "");
    BOOST_TEST(std::ranges::all_of(visits, [](int n) { return n == 1; }));
  }
}

BOOST_AUTO_TEST_CASE(shuffles_read_other_lanes_and_their_own_value_from_outside) {
  for (const ThreadOrder order : kAllOrders) {
    const InThreadOrder in_order(order);
    std::vector<std::array<int, 5>> got(64);
    BOOST_TEST(run(1, 64, [&] {
                 const int own = static_cast<int>(threadIdx.x);
                 got[threadIdx.x] = {
                     __shfl_sync(kAllLanes, own, 5), __shfl_sync(kAllLanes, own, 3, 8),
                     __shfl_down_sync(kAllLanes, own, 2), __shfl_up_sync(kAllLanes, own, 3, 16),
                     __shfl_xor_sync(kAllLanes, own, 4)};
               }) == "");
    for (int t = 0; t < 64; ++t) {
      const std::array<int, 5> want = {t / 32 * 32 + 5, t / 8 * 8 + 3, t % 32 < 30 ? t + 2 : t,
                                       t % 16 >= 3 ? t - 3 : t, t ^ 4};
      BOOST_TEST((got[static_cast<std::size_t>(t)] == want), "thread " << t);
    }
  }
}

BOOST_AUTO_TEST_CASE(votes_count_the_lanes_of_their_mask) {
  std::vector<unsigned> ballots(32);
  std::vector<int> any(32);
  std::vector<int> all(32);
  BOOST_TEST(run(1, 32, [&] {
               const unsigned t = threadIdx.x;
               const unsigned mask = t < 16 ? 0xffffu : 0xffff0000u;
               ballots[t] = __ballot_sync(mask, t % 3 == 0);
               any[t] = __any_sync(mask, t == 20);
               all[t] = __all_sync(mask, t >= 16);
             }) == "");
  BOOST_TEST(ballots[0] == 0x9249u);
  BOOST_TEST(ballots[31] == 0x49240000u);
  BOOST_TEST((any[3] == 0 && any[16] == 1));
  BOOST_TEST((all[3] == 0 && all[16] == 1));
}

BOOST_AUTO_TEST_CASE(shared_memory_is_the_blocks_and_atomic_sums_are_whole) {
  for (const ThreadOrder order : kAllOrders) {
    const InThreadOrder in_order(order);
    std::vector<int> sums(3);
    int largest = 0;
    BOOST_TEST(run(
                   3, 96,
                   [&] {
                     TROUPE_SHARED(values, int[96]);
                     TROUPE_DYNAMIC_SHARED(copies, int);
                     values[threadIdx.x] = static_cast<int>(threadIdx.x + blockIdx.x);
                     __syncthreads();
                     copies[threadIdx.x] = values[95 - threadIdx.x];
                     __syncthreads();
                     atomicAdd(&sums[blockIdx.x], copies[(threadIdx.x + 1) % 96]);
                     atomicMax(&largest, copies[threadIdx.x]);
                   },
                   96 * sizeof(int)) == "");
    for (int block = 0; block < 3; ++block)
      BOOST_TEST(sums[static_cast<std::size_t>(block)] == 95 * 48 + 96 * block);
    BOOST_TEST(largest == 97);
  }
}

BOOST_AUTO_TEST_CASE(unwritten_memory_is_nan_in_each_block) {
  std::vector<float> seen(4);
  BOOST_TEST(run(2, 1, [&] {
               TROUPE_SHARED(value, float);
               seen[blockIdx.x] = value;
               value = 1.0f;
             }) == "");
  void* memory = nullptr;
  cudaMalloc(&memory, 8);
  cudaMemcpyAsync(&seen[2], memory, 8, cudaMemcpyDeviceToHost, nullptr);
  cudaFree(memory);
  BOOST_TEST(std::ranges::all_of(seen, [](float x) { return std::isnan(x); }));
}

BOOST_AUTO_TEST_CASE(a_missing_barrier_shows_in_one_of_the_orders) {
  int num_wrong = 0;
  for (const ThreadOrder order : kAllOrders) {
    const InThreadOrder in_order(order);
    std::vector<unsigned> got(64);
    BOOST_TEST(run(1, 64, [&] {
                 TROUPE_SHARED(values, unsigned[64]);
                 values[threadIdx.x] = threadIdx.x;
                 got[threadIdx.x] = values[threadIdx.x / 2];
               }) == "");
    for (unsigned t = 0; t < 64; ++t) num_wrong += got[t] != t / 2;
  }
  BOOST_TEST(num_wrong > 0);
}

BOOST_AUTO_TEST_CASE(a_barrier_that_some_threads_do_not_reach_is_named_by_its_line) {
  int line = 0;
  const std::string text = run(2, 48, [&] {
    if (threadIdx.x >= 40) return;
    line = __LINE__ + 1;
    __syncthreads();
  });
  BOOST_TEST(text == "block (0, 0, 0): threads wait for each other: threads 0 to 39 at " +
                         line_name(line) + ", threads 40 to 47 ended");
}

BOOST_AUTO_TEST_CASE(barriers_at_two_lines_are_not_one) {
  int line = 0;
  const std::string text = run(1, 48, [&] {
    if (threadIdx.x == 0) {
      line = __LINE__ + 1;
      __syncthreads();
    } else {
      __syncthreads();
    }
  });
  BOOST_TEST(text == "block (0, 0, 0): threads wait for each other: thread 0 at " +
                         line_name(line) + ", threads 1 to 47 at " + line_name(line + 2));
  // And what comes next is not hurt.
  BOOST_TEST(run(1, 48, [] { __syncthreads(); }) == "");
}

BOOST_AUTO_TEST_CASE(a_warp_and_a_barrier_that_wait_for_each_other_are_named) {
  const std::string text = run(1, 32, [] {
    if (threadIdx.x == 7)
      __syncthreads();
    else
      __syncwarp();
  });
  BOOST_TEST(text.find("threads wait for each other: threads 0 to 6 at ") != text.npos);
}

BOOST_AUTO_TEST_CASE(shuffles_of_lanes_that_take_no_part_are_found) {
  const auto ended = run(1, 32, [] {
    if (threadIdx.x < 16) return;
    __shfl_down_sync(kAllLanes, 1, 1);
  });
  BOOST_TEST(ended.find("the mask has lane 0, which has ended") != ended.npos, ended);
  const auto never_there = run(1, 20, [] { __ballot_sync(kAllLanes, 1); });
  BOOST_TEST(never_there.find("the mask has lane 20, which has ended") != never_there.npos);
  const auto outside = run(1, 32, [] {
    if (threadIdx.x < 16) __shfl_sync(0xffffu, 1, 20);
  });
  BOOST_TEST(outside.find("reads lane 20, which is not in the mask") != outside.npos, outside);
  const auto not_itself = run(1, 32, [] { __syncwarp(0xffffu); });
  BOOST_TEST(not_itself.find("lane 16 is not in its own mask") != not_itself.npos, not_itself);
  const auto other_line = run(1, 32, [] {
    if (threadIdx.x < 16)
      __shfl_xor_sync(kAllLanes, 1, 1);
    else
      __shfl_xor_sync(kAllLanes, 1, 2);
  });
  BOOST_TEST(other_line.find("lane 0 of the mask does something else at ") != other_line.npos);
}

BOOST_AUTO_TEST_CASE(launches_beyond_the_limits_are_rejected) {
  BOOST_TEST(run(0, 32, [] {}) == "a launch of (0, 1, 1) blocks of (32, 1, 1) threads");
  BOOST_TEST(run(1, 1025, [] {}) == "a launch of (1, 1, 1) blocks of (1025, 1, 1) threads");
  const auto too_much = run(1, 1, [] {
    TROUPE_SHARED(values, char[49153]);
    values[0] = 1;
  });
  BOOST_TEST(too_much.find("shared memory of more than 49152 bytes") != too_much.npos, too_much);
}

BOOST_AUTO_TEST_CASE(writes_outside_of_a_variable_are_found) {
  // The address sanitizer ends the program at the write (tests/kernels/cuda/faults).
  if (cuda_emulation::kHasAddressSanitizer) return;
  const auto shared_fault = run(1, 33, [] {
    TROUPE_SHARED(values, float[32]);
    float* const first = values;
    first[threadIdx.x] = 1.0f;
  });
  BOOST_TEST(shared_fault.find("a write outside of the shared variable at ") != shared_fault.npos);

  void* memory = nullptr;
  cudaMalloc(&memory, 12);
  const auto* first = static_cast<float*>(memory);
  BOOST_TEST(run(1, 4, [&] { const_cast<float*>(first)[threadIdx.x] = 1.0f; }) == "");
  BOOST_TEST(cudaStreamSynchronize(nullptr) != cudaSuccess);
  BOOST_TEST(cudaGetErrorString(cudaGetLastError()) ==
             std::string("a write outside of device memory of 12 bytes"));
  BOOST_TEST(cudaStreamSynchronize(nullptr) == cudaSuccess);
  BOOST_TEST(cudaFree(memory) == cudaSuccess);
}

BOOST_AUTO_TEST_CASE(half_precision_is_rounded_to_nearest_even_and_widened_exactly) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((half & 0x7c00) == 0x7c00) continue;
    BOOST_REQUIRE_EQUAL(cuda_emulation::__half2float({half}), f16_value(half));
    BOOST_REQUIRE_EQUAL(cuda_emulation::__float2half_rn(f16_value(half)).bits, half);
  }
  for (const float value : random_floats(10'000, 1, 70'000.0f)) {
    BOOST_REQUIRE_EQUAL(cuda_emulation::__float2half_rn(value).bits, f16_bits(value));
    BOOST_REQUIRE_EQUAL(cuda_emulation::__float2half_rn(value * 1e-9f).bits,
                        f16_bits(value * 1e-9f));
    BOOST_REQUIRE_EQUAL(cuda_emulation::__float2bfloat16_rn(value).bits, bf16_bits(value));
    BOOST_REQUIRE_EQUAL(cuda_emulation::__bfloat162float({bf16_bits(value)}),
                        bf16_value(bf16_bits(value)));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  BOOST_TEST(cuda_emulation::__half2float(cuda_emulation::__float2half_rn(-infinity)) == -infinity);
  BOOST_TEST(
      std::isnan(cuda_emulation::__half2float(cuda_emulation::__float2half_rn(std::nanf("")))));
  BOOST_TEST(std::isnan(
      cuda_emulation::__bfloat162float(cuda_emulation::__float2bfloat16_rn(std::nanf("")))));
}

}  // namespace
}  // namespace troupe
