#include "runtime/worker/staged_communicator.hpp"

namespace troupe {

std::span<std::byte> StagedCommunicator::fetch(std::span<const std::byte> data) {
  buffer_.resize(data.size());
  device_.copy_to_host(buffer_.data(), data.data(), data.size());
  if (const Result<void> done = device_.synchronize(); !done.ok()) hosts_.abort(done.error());
  return buffer_;
}

void StagedCommunicator::all_reduce(std::span<float> data) {
  const std::span<std::byte> part = fetch(std::as_bytes(data));
  hosts_.all_reduce({reinterpret_cast<float*>(part.data()), data.size()});
  device_.copy_to_device(data.data(), part.data(), part.size());
}

void StagedCommunicator::all_gather(std::span<const std::byte> data, std::span<std::byte> all) {
  gathered_.resize(all.size());
  hosts_.all_gather(fetch(data), gathered_);
  device_.copy_to_device(all.data(), gathered_.data(), all.size());
}

void StagedCommunicator::send(std::span<const std::byte> data, std::int32_t to) {
  hosts_.send(fetch(data), to);
}

bool StagedCommunicator::recv(std::span<std::byte> data, std::int32_t from) {
  buffer_.resize(data.size());
  if (!hosts_.recv(buffer_, from)) return false;
  device_.copy_to_device(data.data(), buffer_.data(), data.size());
  return true;
}

}  // namespace troupe
