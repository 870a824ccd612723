#include "runtime/base/tcp_probe.hpp"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace troupe {

Result<FileDescriptor> connect_tcp(const std::string& host, std::uint16_t port,
                                   std::chrono::milliseconds timeout) {
  const std::string where = host + ":" + std::to_string(port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0) {
    return Error{ErrorCode::kNotFound, where + ": " + gai_strerror(error)};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  Error last{ErrorCode::kUnavailable, where + ": no address"};
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    FileDescriptor connection(
        socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!connection.valid()) continue;
    int error = connect(connection.get(), address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      pollfd waiting{.fd = connection.get(), .events = POLLOUT, .revents = 0};
      if (poll(&waiting, 1, static_cast<int>(timeout.count())) <= 0) {
        error = ETIMEDOUT;
      } else {
        socklen_t size = sizeof error;
        getsockopt(connection.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
    }
    if (error == 0) return connection;
    last = {error == ETIMEDOUT ? ErrorCode::kTimeout : ErrorCode::kUnavailable,
            where + ": " + std::strerror(error)};
  }
  return last;
}

Result<void> probe_tcp(const std::string& host, std::uint16_t port,
                       std::chrono::milliseconds timeout) {
  RETURN_IF_ERROR(connect_tcp(host, port, timeout));
  return {};
}

}  // namespace troupe
