// What other stores hold and answer: arbitrary bytes as the file of a piece, with the header and
// the checksum that fit, and as replies of Redis (both layouts) and of an lm:// server to our
// clients.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/kv_transfer/kept_piece.hpp"
#include "runtime/kv_transfer/lmcache/remote_store.hpp"

namespace {

using namespace troupe;

void read_piece(const std::uint8_t* data, std::size_t size, bool is_narrow) {
  Blob blob(size);
  if (size > 0) std::memcpy(blob.data(), data, size);
  if (size < sizeof(BlobHeader)) {
    if (KeptPiece::unpack(blob, {}, {}, is_narrow).ok()) std::abort();
    return;
  }
  BlobHeader header;
  std::memcpy(&header, blob.data(), sizeof(header));
  seal_blob(blob);
  const StoreKey key{header.hash, header.group};
  const auto piece = KeptPiece::unpack(blob, header.origin, key, is_narrow);
  if (piece.ok() && (*piece)->pack(header.origin, key.hash) != blob) std::abort();
}

/// Sends the same bytes to everyone who connects.
class Server {
 public:
  Server() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_, SOMAXCONN) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      std::abort();
    port_ = ntohs(address.sin_port);
    std::thread([this] { run(); }).detach();
  }
  void set_reply(std::string reply) {
    const std::lock_guard lock(mutex_);
    reply_ = std::move(reply);
  }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  void run() {
    while (true) {
      const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) continue;
      std::string reply;
      {
        const std::lock_guard lock(mutex_);
        reply = reply_;
      }
      static_cast<void>(::send(connection, reply.data(), reply.size(), MSG_NOSIGNAL));
      ::shutdown(connection, SHUT_WR);
      std::array<char, 4096> ignored;
      while (::recv(connection, ignored.data(), ignored.size(), 0) > 0) continue;
      ::close(connection);
    }
  }

  int listener_;
  std::uint16_t port_ = 0;
  std::mutex mutex_;  // guards the reply
  std::string reply_;
};

void call_store(const char* scheme, int first_call, std::string reply) {
  static auto& server = *new Server;
  constexpr std::size_t kValueBytes = 16;
  server.set_reply(std::move(reply));
  const auto store = lmcache::make_remote_store({.url = scheme + server.address()}).value();
  const std::array<std::string, 3> keys = {"model@1@0@a@bfloat16", "model@1@0@b@bfloat16", "c"};
  const std::array<std::byte, kValueBytes> value{};
  for (int call = first_call; call < first_call + 3; ++call) {
    if (call % 3 == 0) {
      const auto count = store->count_leading(keys);
      if (count.ok() && *count > keys.size()) std::abort();
    } else if (call % 3 == 1) {
      const auto found = store->get(keys[0], kValueBytes);
      if (found.ok() && *found && (*found)->size() != kValueBytes) std::abort();
    } else {
      static_cast<void>(store->put(keys[1], {}, value));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const int kind = data[0] % 5;
  if (kind < 2) {
    read_piece(data + 1, size - 1, kind == 1);
    return 0;
  }
  constexpr std::array kSchemes = {"redis://", "resp://", "lm://"};
  call_store(kSchemes[static_cast<std::size_t>(kind - 2)], data[0] / 5 % 3,
             {reinterpret_cast<const char*>(data + 1), size - 1});
  return 0;
}
