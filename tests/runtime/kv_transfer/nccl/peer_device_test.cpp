#include "runtime/kv_transfer/peer_device.hpp"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/gpu_ranks.hpp"

namespace troupe {
namespace {

using testing::NeedsGpu;
using testing::run_gpu_ranks;
using namespace std::chrono_literals;

BOOST_TEST_GLOBAL_FIXTURE(NeedsGpu);

constexpr std::array<std::size_t, 5> kSizes = {1, 4096, 3, 1 << 20, 65537};

std::vector<std::vector<std::byte>> contents(int round) {
  std::vector<std::vector<std::byte>> parts;
  for (const std::size_t size : kSizes) {
    std::vector<std::byte>& part = parts.emplace_back(size);
    for (std::size_t i = 0; i < size; ++i)
      part[i] = static_cast<std::byte>(i * 31 + size + static_cast<std::size_t>(round));
  }
  return parts;
}

/// The two ends of a link in processes of their own, whose GPU may be the same.
class TwoEnds {
 public:
  TwoEnds() { BOOST_REQUIRE(pipe(id_pipe_.data()) == 0); }
  ~TwoEnds() {
    close(id_pipe_[0]);
    close(id_pipe_[1]);
  }
  TwoEnds(const TwoEnds&) = delete;
  TwoEnds& operator=(const TwoEnds&) = delete;

  /// run(end, its PeerDevice) in both.
  bool run(const std::function<bool(PeerDevice::End, PeerDevice&)>& run) const {
    return run_gpu_ranks(2, [&](int rank) {
      const auto end = rank == 0 ? PeerDevice::End::kServes : PeerDevice::End::kLoads;
      std::string id(128, '\0');
      if (end == PeerDevice::End::kServes) {
        const auto made = make_peer_device_id();
        if (!made.ok()) return report(made.error());
        if (write(id_pipe_[1], made->data(), made->size()) != 128) return false;
        id = *made;
      } else if (read(id_pipe_[0], id.data(), id.size()) != 128) {
        return false;
      }
      auto device =
          meet_peer_device(id, end, current_peer_device(), std::chrono::steady_clock::now() + 60s);
      if (!device.ok()) return report(device.error());
      return run(end, **device);
    });
  }

  static bool report(const Error& error) {
    std::fprintf(stderr, "%s\n", error.message.c_str());
    return false;
  }

 private:
  std::array<int, 2> id_pipe_{};
};

BOOST_AUTO_TEST_CASE(parts_arrive_in_the_memory_of_the_other_gpu) {
  BOOST_TEST(TwoEnds().run([](PeerDevice::End end, PeerDevice& device) {
    for (int round = 0; round < 3; ++round) {
      const auto expected = contents(round);
      std::vector<PeerPart> parts;
      for (const auto& part : expected) {
        void* data = nullptr;
        if (cudaMalloc(&data, part.size()) != cudaSuccess) return false;
        cudaMemset(data, 0, part.size());
        if (end == PeerDevice::End::kServes)
          cudaMemcpy(data, part.data(), part.size(), cudaMemcpyHostToDevice);
        parts.push_back({static_cast<std::byte*>(data), part.size()});
      }
      const SteadyTime deadline = std::chrono::steady_clock::now() + 60s;
      const auto done = end == PeerDevice::End::kServes ? device.send(parts, deadline)
                                                        : device.receive(parts, deadline);
      if (!done.ok()) return TwoEnds::report(done.error());
      for (std::size_t i = 0; i < parts.size(); ++i) {
        std::vector<std::byte> found(parts[i].num_bytes);
        cudaMemcpy(found.data(), parts[i].data, parts[i].num_bytes, cudaMemcpyDeviceToHost);
        if (found != expected[i]) return false;
        cudaFree(parts[i].data);
      }
    }
    return true;
  }));
}

BOOST_AUTO_TEST_CASE(a_peer_that_sends_nothing_is_given_up_at_the_deadline) {
  std::array<int, 2> done{};
  BOOST_REQUIRE(pipe(done.data()) == 0);
  BOOST_TEST(TwoEnds().run([&](PeerDevice::End end, PeerDevice& device) {
    char byte = 0;
    if (end == PeerDevice::End::kServes) return read(done[0], &byte, 1) == 1;
    void* data = nullptr;
    if (cudaMalloc(&data, 4096) != cudaSuccess) return false;
    const PeerPart part{static_cast<std::byte*>(data), 4096};
    const auto received = device.receive({&part, 1}, std::chrono::steady_clock::now() + 500ms);
    const bool is_late = !received.ok() && received.error().code == ErrorCode::kTimeout;
    return write(done[1], &byte, 1) == 1 && is_late;
  }));
  close(done[0]);
  close(done[1]);
}

}  // namespace
}  // namespace troupe
