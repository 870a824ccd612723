#pragma once
// What the tests of the CUDA kernels share: the device, inputs that exist on the host and there,
// and the comparison of both tables.

#include <cstdint>
#include <tuple>
#include <vector>

#include "kernels/device_table.hpp"
#include "tests/kernels/kernel_testing.hpp"
#include "tests/kernels/thread_orders.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/test_device.hpp"

namespace troupe::testing {

/// That of test_device().
inline const DeviceTable& device_table() {
  static const DeviceTable& table = [&]() -> const DeviceTable& {
    const DeviceTable* chosen = tests_gpu() ? cuda_device() : cuda_emulated_device();
    BOOST_REQUIRE(chosen != nullptr);
    return *chosen;
  }();
  return table;
}

/// The order of all work of the tests on the device.
class DeviceContext {
 public:
  DeviceContext() : stream_(device_table().create_stream()) {
    BOOST_REQUIRE(stream_ != nullptr);
    context_.stream = stream_;
  }
  ~DeviceContext() { device_table().destroy_stream(stream_); }
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;
  operator const OpContext&() const { return context_; }
  [[nodiscard]] std::string synchronize() const { return device_table().synchronize(stream_); }
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
      : size_(size), memory_(device_table().allocate(num_bytes())) {
    BOOST_REQUIRE(size == 0 || memory_ != nullptr);
    device_table().copy_to_device(device().stream(), memory_, values, num_bytes());
  }
  ~DeviceArray() { device_table().release(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_); }
  /// Waits for the device; an error on the way fails the test.
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> result(size_);
    device_table().copy_to_host(device().stream(), result.data(), data(), num_bytes());
    BOOST_REQUIRE_EQUAL(device().synchronize(), "");
    return result;
  }

 private:
  [[nodiscard]] std::int64_t num_bytes() const {
    return static_cast<std::int64_t>(size_ * sizeof(T));
  }
  std::size_t size_;
  std::byte* memory_;
};

inline const OpTable& reference() { return *cpu_ops(Isa::kScalar); }
inline const OpTable& gpu() { return *device_table().ops; }

template <class T>
bool same_values(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// What f(ops, context, out, inputs...) leaves in `out` on the device, given copies there. The
/// emulation runs it once in each order of threads; the bits must not depend on that.
template <class T, class F, class... Inputs>
std::vector<T> run_on_device(const std::vector<T>& out, const F& f,
                             const std::vector<Inputs>&... inputs) {
  const auto run = [&] {
    const DeviceArray<T> out_there(out);
    const std::tuple<DeviceArray<Inputs>...> inputs_there(inputs...);
    std::apply(
        [&](const auto&... arrays) { f(gpu(), device(), out_there.data(), arrays.data()...); },
        inputs_there);
    return out_there.values();
  };
  std::vector<T> result = run();
  // An order shows in results, for which the release build is enough.
  if (kSanitized || &device_table() != cuda_emulated_device()) return result;
  for (const ThreadOrder order : kOtherOrders) {
    const InThreadOrder in_order(order);
    BOOST_TEST(same_values(run(), result), "the result depends on the order of threads: " << order);
  }
  return result;
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
