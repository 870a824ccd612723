#include "runtime/models/device.hpp"

#include <string>

namespace troupe {

Device::Device(Isa isa, int num_threads) : isa_(isa), ops_(cpu_ops(isa)), pool_(num_threads) {}

Result<std::unique_ptr<Device>> Device::create_cpu(std::string_view isa, int num_threads) {
  const IsaChoice choice = choose_isa(isa);
  if (!choice.error.empty()) return Error{ErrorCode::kUnsupported, choice.error};
  return std::unique_ptr<Device>(new Device(choice.isa, num_threads));
}

Result<void> Device::reserve_workspace(std::int64_t num_bytes) {
  if (num_bytes <= workspace_bytes()) return {};
  ASSIGN_OR_RETURN(workspace_,
                   Memory::allocate(static_cast<std::size_t>(num_bytes), "the kernels' workspace"));
  return {};
}

}  // namespace troupe
