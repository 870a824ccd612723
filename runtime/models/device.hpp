#pragma once
// What a model computes on: a backend's operations, the threads, and scratch memory.

#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/backend.hpp"
#include "kernels/thread_pool.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/memory.hpp"

namespace troupe {

/// Owns the thread pool and the kernels' workspace. One per worker; it outlives its models.
class Device {
 public:
  /// `isa`: "auto" or the name of an instruction set; num_threads 0: one per core.
  /// Errors: kUnsupported with the reason.
  static Result<std::unique_ptr<Device>> create_cpu(std::string_view isa, int num_threads);

  [[nodiscard]] const OpTable& ops() const noexcept { return *ops_; }
  [[nodiscard]] OpContext context() noexcept { return {&pool_, workspace_.bytes()}; }
  [[nodiscard]] ThreadPool& pool() noexcept { return pool_; }
  [[nodiscard]] std::string_view isa_name() const noexcept { return to_string(isa_); }

  /// Makes the workspace at least so large. Errors: kIo.
  Result<void> reserve_workspace(std::int64_t num_bytes);
  [[nodiscard]] std::int64_t workspace_bytes() const noexcept {
    return static_cast<std::int64_t>(workspace_.size());
  }

 private:
  Device(Isa isa, int num_threads);
  Isa isa_;
  const OpTable* ops_;
  ThreadPool pool_;
  Memory workspace_;
};

}  // namespace troupe
