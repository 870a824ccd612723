#pragma once
// Whether somebody listens at an address, with a deadline: CAF's own connect has none, and blocks
// every other connection of the process while it waits.

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// A connection that does not block whoever uses it. Errors: as of probe_tcp.
[[nodiscard]] Result<FileDescriptor> connect_tcp(const std::string& host, std::uint16_t port,
                                                 std::chrono::milliseconds timeout);

/// Connects and closes again. Errors: kNotFound for a name that does not resolve, kTimeout,
/// kUnavailable if the connection is refused; each names host and port.
[[nodiscard]] Result<void> probe_tcp(const std::string& host, std::uint16_t port,
                                     std::chrono::milliseconds timeout);

}  // namespace troupe
