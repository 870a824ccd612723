#include "runtime/worker/communicators/nccl/nccl.hpp"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/worker/communicators/create.hpp"
#include "tests/support/gpu_ranks.hpp"

namespace troupe {
namespace {

using testing::NeedsGpu;
using testing::run_gpu_ranks;

BOOST_TEST_GLOBAL_FIXTURE(NeedsGpu);

constexpr std::size_t kCount = 100'003;

std::vector<float> numbers(int rank) {
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i)
    values[i] = std::sin(static_cast<float>(i * 7 + 1)) *
                std::pow(10.0f, static_cast<float>((static_cast<std::size_t>(rank) * 3 + i) % 5));
  return values;
}

/// (a + b) + (c + d)
std::vector<float> canonical_sum(int size) {
  std::vector<std::vector<float>> sums;
  for (int rank = 0; rank < size; ++rank) sums.push_back(numbers(rank));
  for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
    for (std::size_t pair = 0; pair < sums.size() / 2; ++pair)
      for (std::size_t i = 0; i < kCount; ++i)
        sums[pair][i] = sums[2 * pair][i] + sums[2 * pair + 1][i];
  }
  return sums.front();
}

/// Floats on the rank's GPU.
class DeviceFloats {
 public:
  explicit DeviceFloats(const std::vector<float>& values) : size_(values.size()) {
    if (cudaMalloc(reinterpret_cast<void**>(&data_), size_ * sizeof(float)) == cudaSuccess)
      cudaMemcpy(data_, values.data(), size_ * sizeof(float), cudaMemcpyHostToDevice);
  }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;
  ~DeviceFloats() { cudaFree(data_); }
  [[nodiscard]] std::span<float> span() const { return {data_, size_}; }
  [[nodiscard]] std::span<std::byte> bytes() const { return std::as_writable_bytes(span()); }
  [[nodiscard]] std::vector<float> values() const {
    std::vector<float> result(size_);
    cudaMemcpy(result.data(), data_, size_ * sizeof(float), cudaMemcpyDeviceToHost);
    return result;
  }

 private:
  float* data_ = nullptr;
  std::size_t size_;
};

/// Every operation once. False, with its name on standard error, where a result is wrong.
bool communicate(int rank, int size, const std::string& rendezvous) {
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return false;
  auto hosts = create_communicator(
      {.rendezvous = rendezvous, .rank = rank, .size = size, .group_size = size, .timeout_s = 60});
  const auto is_fine = [&](const char* what, bool fine) {
    if (!fine) std::fprintf(stderr, "rank %d of %d: %s\n", rank, size, what);
    return fine;
  };
  if (!hosts.ok()) return is_fine(hosts.error().message.c_str(), false);
  auto communicator = create_nccl_communicator(**hosts, 60, stream);
  if (!communicator.ok()) return is_fine(communicator.error().message.c_str(), false);

  const DeviceFloats own(numbers(rank));
  const DeviceFloats sum(numbers(rank));
  const DeviceFloats all(std::vector<float>(static_cast<std::size_t>(size) * kCount));
  const DeviceFloats received(std::vector<float>(kCount, 0.0f));
  (*communicator)->all_reduce(sum.span());
  (*communicator)->all_gather(own.bytes(), all.bytes());
  // Rank by rank, as stages of a pipeline do.
  if (rank > 0 && !is_fine("recv", (*communicator)->recv(received.bytes(), rank - 1))) return false;
  if (rank + 1 < size) (*communicator)->send(own.bytes(), rank + 1);
  (*communicator)->barrier();
  if (const auto status = (*communicator)->status(); !status.ok())
    return is_fine(status.error().message.c_str(), false);

  std::vector<float> expected_all;
  for (int other = 0; other < size; ++other) {
    const std::vector<float> part = numbers(other);
    expected_all.insert(expected_all.end(), part.begin(), part.end());
  }
  return is_fine("all_reduce", sum.values() == canonical_sum(size)) &&
         is_fine("all_gather", all.values() == expected_all) &&
         is_fine("send", rank == 0 || received.values() == numbers(rank - 1));
}

BOOST_AUTO_TEST_CASE(gpus_add_in_the_canonical_tree_gather_and_send) {
  for (const int size : {1, 2, 4}) {
    const std::string rendezvous =
        "shm:troupe-nccl-" + std::to_string(getpid()) + "-" + std::to_string(size);
    BOOST_TEST(run_gpu_ranks(size, [&](int rank) { return communicate(rank, size, rendezvous); }),
               size << " ranks");
  }
}

}  // namespace
}  // namespace troupe
