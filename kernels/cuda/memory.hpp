#pragma once
// Device memory, streams and copies. See kernels/device_table.hpp for what they do.

#include "kernels/device_table.hpp"

namespace troupe::TROUPE_DEVICE {

int count() noexcept;
void select(int index) noexcept;
std::int64_t free_bytes() noexcept;
std::byte* allocate(std::int64_t num_bytes) noexcept;
void release(std::byte* data) noexcept;
void* create_stream() noexcept;
void destroy_stream(void* stream) noexcept;
void copy_to_device(void* stream, void* device, const void* host, std::int64_t num_bytes) noexcept;
void copy_to_host(void* stream, void* host, const void* device, std::int64_t num_bytes) noexcept;
void copy(void* stream, void* to, const void* from, std::int64_t num_bytes) noexcept;
void fill_zero(void* stream, void* data, std::int64_t num_bytes) noexcept;
std::string synchronize(void* stream);

}  // namespace troupe::TROUPE_DEVICE
