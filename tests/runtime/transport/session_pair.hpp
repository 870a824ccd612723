#pragma once
// Two sessions that are connected without a network.

#include <sys/socket.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <string>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/transport/session.hpp"

namespace troupe {

inline std::array<FileDescriptor, 2> make_socket_pair() {
  std::array<int, 2> ends{};
  BOOST_REQUIRE_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/// Until something comes, or the connection is over.
inline std::string read_some(Session& session, Session& other) {
  std::array<char, 1000> text;
  for (int tries = 0; tries < 10; ++tries) {
    const auto count = session.read(text);
    if (!count) return "over: " + session.error();
    if (*count > 0) return {text.data(), *count};
    static_cast<void>(other.read({}));
  }
  return "nothing";
}

}  // namespace troupe
