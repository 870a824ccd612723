#pragma once
// Where a model computes: memory, operations, the order of its work, the threads and scratch memory
// of the kernels.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/backend.hpp"
#include "kernels/device_table.hpp"
#include "kernels/thread_pool.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/memory.hpp"

namespace troupe {

/// Owns memory of a Device, which outlives it. Unless the device is the CPU, the host neither reads
/// nor writes it, and it is uninitialised; on the CPU it is Memory.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(Memory memory) : host_(std::move(memory)), bytes_(host_.bytes()) {}
  /// Of `table`'s allocate().
  DeviceMemory(const DeviceTable& table, std::span<std::byte> bytes)
      : table_(&table), bytes_(bytes) {}
  DeviceMemory(DeviceMemory&& other) noexcept
      : host_(std::move(other.host_)),
        table_(std::exchange(other.table_, nullptr)),
        bytes_(std::exchange(other.bytes_, {})) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(table_, other.table_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceMemory() {
    if (table_ != nullptr) table_->release(bytes_.data());
  }

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::byte* data() const noexcept { return bytes_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }

 private:
  Memory host_;
  const DeviceTable* table_ = nullptr;  // null: the CPU
  std::span<std::byte> bytes_;
};

/// Owns numbers that kernels of a Device read: those that the host made, or a copy of them.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(std::vector<T> values) : values_(std::move(values)), size_(values_.size()) {}
  DeviceArray(DeviceMemory memory, std::size_t size) : memory_(std::move(memory)), size_(size) {}

  /// Null if it is empty.
  [[nodiscard]] const T* data() const noexcept {
    return values_.empty() ? reinterpret_cast<const T*>(memory_.data()) : values_.data();
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }

 private:
  std::vector<T> values_;  // on the CPU
  DeviceMemory memory_;    // on other devices
  std::size_t size_ = 0;
};

struct DeviceOptions {
  std::string name = "auto";  ///< see Device::create
  std::string cpu_isa = "auto";
  int num_threads = 0;  ///< 0: one per core
  /// Of the workers on this host: they take its devices in turns, and share them where they are
  /// more.
  int rank_on_host = 0;
  int ranks_on_host = 1;
};

/// Copies between the host and a device for a thread other than the device's, beside what the
/// device computes. Used by the thread that made it.
class DeviceCopier {
 public:
  DeviceCopier(DeviceCopier&& other) noexcept
      : table_(other.table_), stream_(std::exchange(other.stream_, nullptr)) {}
  DeviceCopier& operator=(DeviceCopier&&) = delete;
  ~DeviceCopier();

  /// From the host, which may change the source at once; the copy is there after synchronize().
  void copy_to_device(void* to, const void* from, std::size_t num_bytes) noexcept;
  /// To the host: the result is there after synchronize().
  void copy_to_host(void* to, const void* from, std::size_t num_bytes) noexcept;
  /// Waits for the copies. Errors: kInternal, what went wrong.
  Result<void> synchronize();

 private:
  friend class Device;
  DeviceCopier(const DeviceTable* table, void* stream) : table_(table), stream_(stream) {}
  const DeviceTable* table_;  // null: the CPU
  void* stream_;
};

/// Owns the thread pool, the kernels' workspace and, unless it is the CPU, a stream: what it does
/// is done in the order of the calls, and may be under way when they return. One per worker, used
/// by one thread; it outlives its models and all of its memory.
class Device {
 public:
  /// `name`: "cpu"; "cuda"; "cuda-emulated", the same kernels compiled for the CPU; "auto": cuda
  /// where this build has its kernels and there is a GPU, else cpu. Errors: kUnsupported with the
  /// reason, kInvalidArgument for another name.
  static Result<std::unique_ptr<Device>> create(const DeviceOptions& options);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  [[nodiscard]] const OpTable& ops() const noexcept { return *ops_; }
  [[nodiscard]] OpContext context() noexcept { return {&pool_, workspace_.bytes(), stream_}; }
  [[nodiscard]] ThreadPool& pool() noexcept { return pool_; }
  /// Of the CPU; elsewhere empty.
  [[nodiscard]] std::string_view isa_name() const noexcept {
    return is_host() ? to_string(isa_) : std::string_view();
  }
  /// It is the CPU: its memory is the host's, and nothing is under way when a call returns.
  [[nodiscard]] bool is_host() const noexcept { return table_ == nullptr; }

  /// Other workers of this host are on it as well.
  [[nodiscard]] bool is_shared() const noexcept { return num_sharing_ > 1; }

  /// Makes the workspace at least so large. Errors: those of allocate.
  Result<void> reserve_workspace(std::int64_t num_bytes);
  [[nodiscard]] std::int64_t workspace_bytes() const noexcept {
    return static_cast<std::int64_t>(workspace_.size());
  }

  /// `what` names the purpose in errors. Errors: kIo with the number of bytes.
  [[nodiscard]] Result<DeviceMemory> allocate(std::size_t num_bytes, std::string_view what);
  /// What allocate() has given out so far, whatever became of it.
  [[nodiscard]] std::int64_t allocated_bytes() const noexcept { return allocated_bytes_; }
  /// The host's memory where kernels read it: that itself, or a copy. Errors: those of allocate.
  [[nodiscard]] Result<DeviceMemory> upload(Memory memory, std::string_view what);
  template <class T>
  [[nodiscard]] Result<DeviceArray<T>> upload(std::vector<T> values, std::string_view what) {
    if (is_host()) return DeviceArray<T>(std::move(values));
    ASSIGN_OR_RETURN(DeviceMemory memory, upload_copy(std::as_bytes(std::span(values)), what));
    return DeviceArray<T>(std::move(memory), values.size());
  }
  /// A copy on the device. Errors: those of allocate.
  [[nodiscard]] Result<DeviceMemory> upload_copy(std::span<const std::byte> bytes,
                                                 std::string_view what);

  /// From the host. The source may be changed at once.
  void copy_to_device(void* to, const void* from, std::size_t num_bytes) noexcept;
  /// To the host: the result is there after synchronize().
  void copy_to_host(void* to, const void* from, std::size_t num_bytes) noexcept;
  /// Within the device; from and to do not overlap.
  void copy(void* to, const void* from, std::size_t num_bytes) noexcept {
    if (is_host())
      std::memcpy(to, from, num_bytes);
    else
      table_->copy(stream_, to, from, static_cast<std::int64_t>(num_bytes));
  }
  void fill_zero(void* data, std::size_t num_bytes) noexcept {
    if (is_host())
      std::memset(data, 0, num_bytes);
    else
      table_->fill_zero(stream_, data, static_cast<std::int64_t>(num_bytes));
  }

  /// On any thread, whose current device becomes this one. Errors: kUnavailable, no stream is left.
  [[nodiscard]] Result<DeviceCopier> make_copier() const;

  /// Waits for all that is under way. Errors: kInternal, what went wrong since the device was made,
  /// the first of it: it is of no further use.
  Result<void> synchronize();
  /// Records an error that synchronize() is to tell.
  void fail(Error error);
  /// What synchronize() told last.
  [[nodiscard]] const Result<void>& status() const noexcept { return status_; }

  /// Of its memory: this worker's share of what is free. Pre: it is not the CPU.
  [[nodiscard]] std::int64_t available_bytes() const noexcept;

 private:
  Device(std::string_view name, Isa isa, const DeviceTable* table, const DeviceOptions& options);
  std::string_view name_;
  Isa isa_;
  const DeviceTable* table_;  // null: the CPU
  const OpTable* ops_;
  int index_ = 0;  // among those of its kind
  void* stream_ = nullptr;
  int num_sharing_ = 1;  // workers of this host on the same device
  ThreadPool pool_;
  DeviceMemory workspace_;
  std::int64_t allocated_bytes_ = 0;
  Result<void> status_;
};

}  // namespace troupe
