#include "runtime/kv_transfer/peer_device.hpp"

#if defined(TROUPE_NCCL)
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <thread>
#include <utility>
#endif

namespace troupe {

#if defined(TROUPE_NCCL)
namespace {

using std::chrono::steady_clock;

constexpr auto kDevicePollInterval = std::chrono::microseconds(50);

Error nccl_error(ncclResult_t result) {
  return {ErrorCode::kUnavailable, std::string("NCCL: ") + ncclGetErrorString(result), {}};
}
Error cuda_error(cudaError_t result) {
  return {ErrorCode::kUnavailable, std::string("CUDA: ") + cudaGetErrorString(result), {}};
}
Error late_error() { return {ErrorCode::kTimeout, "NCCL takes too long", {}}; }

class NcclPeerDevice final : public PeerDevice {
 public:
  ~NcclPeerDevice() override {
    // Unlike ncclCommDestroy it does not wait for a lost peer.
    if (comm_ != nullptr) ncclCommAbort(comm_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Result<void> meet(const std::string& text, End end, int device, SteadyTime deadline) {
    ncclUniqueId id{};
    if (text.size() != sizeof id.internal)
      return Error{
          ErrorCode::kCorrupt, "NCCL's id has " + std::to_string(text.size()) + " bytes", {}};
    std::memcpy(id.internal, text.data(), text.size());
    device_ = device;
    peer_ = end == End::kServes ? 1 : 0;
    if (const cudaError_t set = cudaSetDevice(device_); set != cudaSuccess) return cuda_error(set);
    if (const cudaError_t made = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
        made != cudaSuccess)
      return cuda_error(made);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return wait_for_nccl(ncclCommInitRankConfig(&comm_, 2, id, 1 - peer_, &config), deadline);
  }

  Result<void> send(std::span<const PeerPart> parts, SteadyTime deadline) override {
    return exchange(parts, deadline, [this](const PeerPart& part) {
      return ncclSend(part.data, part.num_bytes, ncclInt8, peer_, comm_, stream_);
    });
  }
  Result<void> receive(std::span<const PeerPart> parts, SteadyTime deadline) override {
    return exchange(parts, deadline, [this](const PeerPart& part) {
      return ncclRecv(part.data, part.num_bytes, ncclInt8, peer_, comm_, stream_);
    });
  }

 private:
  /// What `enqueue` asks for each part, as one operation.
  template <class Enqueue>
  Result<void> exchange(std::span<const PeerPart> parts, SteadyTime deadline, Enqueue&& enqueue) {
    if (const cudaError_t set = cudaSetDevice(device_); set != cudaSuccess) return cuda_error(set);
    // Kernels of steps may still use these blocks, or write them.
    if (const cudaError_t done = cudaDeviceSynchronize(); done != cudaSuccess)
      return cuda_error(done);
    if (const ncclResult_t begun = ncclGroupStart(); begun != ncclSuccess) return nccl_error(begun);
    ncclResult_t enqueued = ncclSuccess;
    for (const PeerPart& part : parts)
      if (enqueued == ncclSuccess || enqueued == ncclInProgress) enqueued = enqueue(part);
    const ncclResult_t ended = ncclGroupEnd();
    if (enqueued != ncclSuccess && enqueued != ncclInProgress) return nccl_error(enqueued);
    RETURN_IF_ERROR(wait_for_nccl(ended, deadline));
    while (true) {
      const cudaError_t done = cudaStreamQuery(stream_);
      if (done == cudaSuccess) return {};
      if (done != cudaErrorNotReady) return cuda_error(done);
      ncclResult_t result = ncclSuccess;
      if (ncclCommGetAsyncError(comm_, &result) == ncclSuccess && result != ncclSuccess &&
          result != ncclInProgress)
        return nccl_error(result);
      if (steady_clock::now() >= deadline) return late_error();
      std::this_thread::sleep_for(kDevicePollInterval);
    }
  }

  /// Until NCCL has taken what it was asked for.
  Result<void> wait_for_nccl(ncclResult_t result, SteadyTime deadline) const {
    while (result == ncclInProgress) {
      if (steady_clock::now() >= deadline) return late_error();
      std::this_thread::sleep_for(kDevicePollInterval);
      if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result); asked != ncclSuccess)
        return nccl_error(asked);
    }
    if (result != ncclSuccess) return nccl_error(result);
    return {};
  }

  int device_ = 0;
  int peer_ = 0;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

Result<void> check_peer_devices() { return {}; }

Result<std::string> make_peer_device_id() {
  ncclUniqueId id{};
  if (const ncclResult_t made = ncclGetUniqueId(&id); made != ncclSuccess) return nccl_error(made);
  return std::string(id.internal, sizeof id.internal);
}

int current_peer_device() {
  int device = 0;
  static_cast<void>(cudaGetDevice(&device));
  return device;
}

Result<std::unique_ptr<PeerDevice>> meet_peer_device(const std::string& id, PeerDevice::End end,
                                                     int device, SteadyTime deadline) {
  auto met = std::make_unique<NcclPeerDevice>();
  RETURN_IF_ERROR(met->meet(id, end, device, deadline));
  return std::unique_ptr<PeerDevice>(std::move(met));
}

#else

Result<void> check_peer_devices() {
  return Error{ErrorCode::kUnsupported,
               "kv-transfer-config: kv_connector_extra_config: transport is nccl, which this build "
               "does not have: it needs CUDA and NCCL",
               "kv-transfer-config"};
}
Result<std::string> make_peer_device_id() { return check_peer_devices().error(); }
int current_peer_device() { return 0; }
Result<std::unique_ptr<PeerDevice>> meet_peer_device(const std::string&, PeerDevice::End, int,
                                                     SteadyTime) {
  return check_peer_devices().error();
}

#endif

}  // namespace troupe
