#pragma once
// A TCP port for a server that a test starts.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdint>

namespace troupe::testing {

/// One that nobody listens on, from below those that the system gives to connections: what is free
/// now is so when the server comes. Processes begin at different ones.
inline std::uint16_t free_port() {
  constexpr int kFirst = 12000, kCount = 10000;
  static int offset = ::getpid() % kCount;
  for (int i = 0; i < kCount; ++i) {
    const auto port = static_cast<std::uint16_t>(kFirst + offset++ % kCount);
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    const bool is_free =
        ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    ::close(socket);
    if (is_free) return port;
  }
  BOOST_FAIL("no port is free");
  return 0;
}

}  // namespace troupe::testing
