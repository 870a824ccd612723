#include "runtime/worker/communicators/nccl/nccl.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPollInterval = std::chrono::microseconds(50);

/// Owns an NCCL communicator that does not block: what it was asked for may still be under way.
class NcclComm {
 public:
  NcclComm() = default;
  NcclComm(NcclComm&& other) noexcept : comm_(std::exchange(other.comm_, nullptr)) {}
  NcclComm& operator=(NcclComm&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  ~NcclComm() {
    // Unlike ncclCommDestroy it does not wait for lost peers.
    if (comm_ != nullptr) ncclCommAbort(comm_);
  }
  [[nodiscard]] ncclComm_t get() const noexcept { return comm_; }
  [[nodiscard]] ncclComm_t* out() noexcept { return &comm_; }

 private:
  ncclComm_t comm_ = nullptr;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Communicator& hosts, double timeout_s, cudaStream_t stream)
      : Communicator(hosts.rank(), hosts.size(), hosts.group_size()),
        timeout_s_(timeout_s),
        hosts_(hosts),
        stream_(stream) {}

  /// Rank 0's id goes to all; then one communicator of all ranks, one of the group, and one for
  /// each level of the tree of sums.
  Result<void> meet() {
    ncclUniqueId id{};
    if (rank() == 0 && !check(ncclGetUniqueId(&id), world_)) return status();
    if (!hosts_.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0)) return hosts_.status();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check(ncclCommInitRankConfig(world_.out(), size(), id, rank(), &config), world_);
    split(group_begin(), group_);
    for (std::int32_t distance = 1; distance < group_size(); distance *= 2) {
      const std::int32_t first_of_pair = group_begin() + (group_rank() & ~distance);
      split(first_of_pair, pairs_.emplace_back());
    }
    return status();
  }

  void all_reduce(std::span<float> data) override {
    CHECK(group_size() == 1 || group_size() == 2 || group_size() == 4, group_size());
    for (const NcclComm& pair : pairs_)
      check(ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat, ncclSum, pair.get(),
                          stream_),
            pair);
  }
  void all_gather(std::span<const std::byte> data, std::span<std::byte> all) override {
    CHECK(all.size() == static_cast<std::size_t>(group_size()) * data.size(), all.size(),
          data.size());
    check(ncclAllGather(data.data(), all.data(), data.size(), ncclInt8, group_.get(), stream_),
          group_);
  }
  void send(std::span<const std::byte> data, std::int32_t to) override {
    check(ncclSend(data.data(), data.size(), ncclInt8, to, world_.get(), stream_), world_);
  }
  bool recv(std::span<std::byte> data, std::int32_t from) override {
    return check(ncclRecv(data.data(), data.size(), ncclInt8, from, world_.get(), stream_), world_);
  }
  void barrier() override {
    if (wait_for_stream()) hosts_.barrier();
  }

  void abort(const Error& reason) override { hosts_.abort(reason); }
  [[nodiscard]] Result<void> status() const override {
    static_cast<void>(wait_for_stream());
    return hosts_.status();
  }

 private:
  /// The ranks that name the same first rank form a communicator.
  void split(std::int32_t first_rank, NcclComm& part) {
    if (!hosts_.status().ok()) return;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t result = ncclCommSplit(world_.get(), first_rank, rank(), part.out(), &config);
    // NCCL 2.28 returns ncclSuccess while the split is under way, and sets `part` at its end.
    if (result == ncclSuccess) result = ncclInProgress;
    check(result, world_);
  }

  /// Waits until NCCL has taken the operation; an error, or the deadline, fails all ranks. `comm`
  /// is the communicator of the operation, which may have made it.
  bool check(ncclResult_t result, const NcclComm& comm) const {
    const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s_);
    while (result == ncclInProgress) {
      if (ncclCommGetAsyncError(comm.get(), &result) != ncclSuccess) break;
      if (result != ncclInProgress) break;
      if (!hosts_.status().ok()) return false;
      if (Clock::now() >= deadline) return fail_at_deadline();
      std::this_thread::sleep_for(kPollInterval);
    }
    if (result == ncclSuccess) return hosts_.status().ok();
    hosts_.abort({ErrorCode::kUnsupported, std::string("NCCL: ") + ncclGetErrorString(result)});
    return false;
  }

  bool wait_for_stream() const {
    const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s_);
    while (true) {
      const cudaError_t done = cudaStreamQuery(stream_);
      if (done == cudaSuccess) return true;
      if (done != cudaErrorNotReady) {
        hosts_.abort({ErrorCode::kInternal, std::string("CUDA: ") + cudaGetErrorString(done)});
        return false;
      }
      if (!hosts_.status().ok()) return false;
      if (const ncclResult_t result = asynchronous_error(); result != ncclSuccess)
        return check(result, world_);
      if (Clock::now() >= deadline) return fail_at_deadline();
      std::this_thread::sleep_for(kPollInterval);
    }
  }

  /// Of any of the communicators; ncclSuccess: none.
  [[nodiscard]] ncclResult_t asynchronous_error() const {
    const auto error_of = [](const NcclComm& comm) {
      ncclResult_t result = ncclSuccess;
      if (comm.get() != nullptr) static_cast<void>(ncclCommGetAsyncError(comm.get(), &result));
      return result == ncclInProgress ? ncclSuccess : result;
    };
    for (const NcclComm* comm : {&world_, &group_})
      if (const ncclResult_t error = error_of(*comm); error != ncclSuccess) return error;
    for (const NcclComm& pair : pairs_)
      if (const ncclResult_t error = error_of(pair); error != ncclSuccess) return error;
    return ncclSuccess;
  }

  bool fail_at_deadline() const {
    hosts_.abort({ErrorCode::kTimeout, "rank " + std::to_string(rank()) + " waited " +
                                           std::to_string(timeout_s_) + " s for NCCL"});
    return false;
  }

  double timeout_s_;
  Communicator& hosts_;
  cudaStream_t stream_;
  NcclComm world_;
  NcclComm group_;
  std::vector<NcclComm> pairs_;  // by distance: 1, 2
};

}  // namespace

Result<std::unique_ptr<Communicator>> create_nccl_communicator(Communicator& hosts,
                                                               double timeout_s, void* stream) {
  auto communicator =
      std::make_unique<NcclCommunicator>(hosts, timeout_s, static_cast<cudaStream_t>(stream));
  RETURN_IF_ERROR(communicator->meet());
  return std::unique_ptr<Communicator>(std::move(communicator));
}

}  // namespace troupe
