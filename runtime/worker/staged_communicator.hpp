#pragma once
// Ranks whose data lie on devices that do not reach each other.

#include <vector>

#include "runtime/models/communicator.hpp"
#include "runtime/models/device.hpp"

namespace troupe {

/// Takes data on a device over the host's memory, where another communicator moves and adds them:
/// the same bits, order and errors as that one. Both outlive it.
class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(Device& device, Communicator& hosts)
      : Communicator(hosts.rank(), hosts.size(), hosts.group_size()),
        device_(device),
        hosts_(hosts) {}

  void all_reduce(std::span<float> data) override;
  void all_gather(std::span<const std::byte> data, std::span<std::byte> all) override;
  void send(std::span<const std::byte> data, std::int32_t to) override;
  bool recv(std::span<std::byte> data, std::int32_t from) override;
  void barrier() override { hosts_.barrier(); }
  void abort(const Error& reason) override { hosts_.abort(reason); }
  [[nodiscard]] Result<void> status() const override { return hosts_.status(); }

 private:
  /// A copy of the data on the host.
  [[nodiscard]] std::span<std::byte> fetch(std::span<const std::byte> data);

  Device& device_;
  Communicator& hosts_;
  std::vector<std::byte> buffer_;
  std::vector<std::byte> gathered_;
};

}  // namespace troupe
