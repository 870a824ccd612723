#pragma once
// What the tests of the CUDA kernels share: inputs that exist on the host and on the device, and
// the comparison of both tables.

#include <cstdint>
#include <tuple>
#include <vector>

#include "kernels/cuda/memory.hpp"
#include "tests/kernels/kernel_testing.hpp"

namespace troupe::testing {

/// The order of all work of the tests on the device.
class DeviceContext {
 public:
  DeviceContext() : stream_(cuda::create_stream()) {
    BOOST_REQUIRE(stream_ != nullptr);
    context_.stream = stream_;
  }
  ~DeviceContext() { cuda::destroy_stream(stream_); }
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;
  operator const OpContext&() const { return context_; }
  [[nodiscard]] void* stream() const { return stream_; }

 private:
  void* stream_;
  OpContext context_;
};

/// The context that every test uses; made when the first asks for it, so not without a device.
inline DeviceContext& device() {
  static DeviceContext context;
  return context;
}

/// An array on the device.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.data(), values.size()) {}
  DeviceArray(const T* values, std::size_t size)
      : size_(size), memory_(static_cast<std::int64_t>(size * sizeof(T))) {
    BOOST_REQUIRE(size == 0 || memory_.data() != nullptr);
    cuda::copy_to_device(device().stream(), memory_.data(), values, num_bytes());
  }
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  /// Waits for the device; an error on the way fails the test.
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> result(size_);
    cuda::copy_to_host(device().stream(), result.data(), data(), num_bytes());
    BOOST_REQUIRE_EQUAL(cuda::synchronize(device().stream()), "");
    return result;
  }

 private:
  [[nodiscard]] std::int64_t num_bytes() const {
    return static_cast<std::int64_t>(size_ * sizeof(T));
  }
  std::size_t size_;
  cuda::DeviceMemory memory_;
};

inline const OpTable& reference() { return *cpu_ops(Isa::kScalar); }
inline const OpTable& gpu() { return *cuda_ops(); }

/// What f(ops, context, out, inputs...) leaves in `out` on the device, given copies there.
template <class T, class F, class... Inputs>
std::vector<T> run_on_device(const std::vector<T>& out, const F& f,
                             const std::vector<Inputs>&... inputs) {
  const DeviceArray<T> out_there(out);
  const std::tuple<DeviceArray<Inputs>...> inputs_there(inputs...);
  std::apply([&](const auto&... arrays) { f(gpu(), device(), out_there.data(), arrays.data()...); },
             inputs_there);
  return out_there.values();
}

/// The same with the scalar reference, on the host.
template <class T, class F, class... Inputs>
std::vector<T> run_on_host(std::vector<T> out, const F& f, const std::vector<Inputs>&... inputs) {
  f(reference(), TestContext(), out.data(), inputs.data()...);
  return out;
}

/// The largest |got - want| / (1 + |want|) of the device's results against the reference's.
template <class F, class... Inputs>
double difference_between_tables(const Floats& out, const F& f,
                                 const std::vector<Inputs>&... inputs) {
  const Floats want = run_on_host(out, f, inputs...);
  return worst_error(run_on_device(out, f, inputs...), {want.begin(), want.end()});
}

/// Rows [first, first + num_rows) of a matrix.
inline Floats rows_of(const Floats& values, std::int64_t num_cols, std::int64_t first,
                      std::int64_t num_rows) {
  return {values.begin() + first * num_cols, values.begin() + (first + num_rows) * num_cols};
}

}  // namespace troupe::testing
