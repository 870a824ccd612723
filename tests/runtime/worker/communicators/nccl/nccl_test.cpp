#include "runtime/worker/communicators/nccl/nccl.hpp"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <vector>

#include "runtime/worker/communicators/create.hpp"

namespace troupe {
namespace {

int num_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

struct DeviceNeeded {
  DeviceNeeded() {
    constexpr int kSkipped = 77;
    if (num_devices() == 0) std::_Exit(kSkipped);
  }
};
BOOST_TEST_GLOBAL_FIXTURE(DeviceNeeded);

std::vector<float> numbers(std::int32_t rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = std::sin(static_cast<float>(i * 7 + 1)) *
                std::pow(10.0f, static_cast<float>((static_cast<std::size_t>(rank) * 3 + i) % 5));
  return values;
}

/// What one rank gets; empty if it failed.
std::vector<float> reduce_on_device(std::int32_t rank, std::int32_t size, std::size_t count) {
  cudaStream_t stream = nullptr;
  float* data = nullptr;
  const std::size_t num_bytes = count * sizeof(float);
  if (cudaSetDevice(rank) != cudaSuccess || cudaStreamCreate(&stream) != cudaSuccess ||
      cudaMalloc(reinterpret_cast<void**>(&data), num_bytes) != cudaSuccess)
    return {};
  std::vector<float> values = numbers(rank, count);
  cudaMemcpy(data, values.data(), num_bytes, cudaMemcpyHostToDevice);
  {
    auto hosts = create_communicator({.rendezvous = "shm:troupe-nccl-" + std::to_string(getpid()),
                                      .rank = rank,
                                      .size = size,
                                      .group_size = size,
                                      .timeout_s = 60});
    BOOST_REQUIRE_MESSAGE(hosts.ok(), (hosts.ok() ? "" : hosts.error().message));
    auto communicator = create_nccl_communicator(**hosts, 60, stream);
    BOOST_REQUIRE_MESSAGE(communicator.ok(),
                          (communicator.ok() ? "" : communicator.error().message));
    (*communicator)->all_reduce({data, count});
    (*communicator)->barrier();
    BOOST_TEST((*communicator)->status().ok());
  }
  cudaMemcpy(values.data(), data, num_bytes, cudaMemcpyDeviceToHost);
  cudaFree(data);
  cudaStreamDestroy(stream);
  return values;
}

BOOST_AUTO_TEST_CASE(devices_add_in_the_canonical_tree) {
  constexpr std::size_t kCount = 100'003;
  const std::int32_t size = num_devices() >= 4 ? 4 : num_devices() >= 2 ? 2 : 1;
  std::vector<float> expected = numbers(0, kCount);
  if (size >= 2) {
    const std::vector<float> b = numbers(1, kCount);
    for (std::size_t i = 0; i < kCount; ++i) expected[i] += b[i];
  }
  if (size == 4) {
    const std::vector<float> c = numbers(2, kCount);
    const std::vector<float> d = numbers(3, kCount);
    for (std::size_t i = 0; i < kCount; ++i) expected[i] += c[i] + d[i];
  }
  std::vector<std::vector<float>> results(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      results[static_cast<std::size_t>(rank)] = reduce_on_device(rank, size, kCount);
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& result : results) BOOST_TEST((result == expected));
}

}  // namespace
}  // namespace troupe
