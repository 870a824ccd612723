#pragma once
// Checks with a deadline whether an address accepts connections: CAF's own connect has no deadline,
// and blocks all other connections of the process while it waits.

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// A non-blocking connection. Errors: as of probe_tcp.
[[nodiscard]] Result<FileDescriptor> connect_tcp(const std::string& host, std::uint16_t port,
                                                 std::chrono::milliseconds timeout);

/// Connects and closes again. Errors: kNotFound for a name that does not resolve, kTimeout,
/// kUnavailable if the connection is refused; each names host and port.
[[nodiscard]] Result<void> probe_tcp(const std::string& host, std::uint16_t port,
                                     std::chrono::milliseconds timeout);

}  // namespace troupe
