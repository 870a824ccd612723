#include "runtime/transport/listener_handover.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/transport/local_secret.hpp"

namespace troupe {
namespace {

/// What goes with the socket.
constexpr char kListener = 'L';
/// For the other side to answer; one that is stopped would hold up the start.
constexpr timeval kPatience = {.tv_sec = 2, .tv_usec = 0};

Error io_error(const std::string& what) {
  return {ErrorCode::kIo, what + ": " + std::strerror(errno)};
}

Result<std::string> path_of(const std::string& host, std::uint16_t port) {
  ASSIGN_OR_RETURN(const std::string folder, private_folder());
  return folder + "/listener-" + host + "-" + std::to_string(port);
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Error{ErrorCode::kIo, path + " has " + std::to_string(path.size()) +
                                     " bytes, the path of a Unix socket may have " +
                                     std::to_string(sizeof address.sun_path - 1)};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

/// A message of one byte that carries one descriptor.
struct DescriptorMessage {
  char byte = kListener;
  iovec piece = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};

  DescriptorMessage() {
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;
};

}  // namespace

Result<std::unique_ptr<ListenerHandover>> ListenerHandover::offer(const std::string& host,
                                                                  std::uint16_t port, int listener,
                                                                  std::function<void()> on_taken) {
  ASSIGN_OR_RETURN(const std::string path, path_of(host, port));
  const std::string draft = path + "." + std::to_string(getpid());
  ASSIGN_OR_RETURN(const sockaddr_un address, address_of(draft));
  FileDescriptor door(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  unlink(draft.c_str());
  struct stat status {};
  if (!door.valid() ||
      bind(door.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(door.get(), 1) != 0 || stat(draft.c_str(), &status) != 0)
    return io_error(draft);
  // Atomic: a caller reaches either the previous server or this one.
  if (rename(draft.c_str(), path.c_str()) != 0) return io_error(path);
  return std::unique_ptr<ListenerHandover>(
      new ListenerHandover(path, status.st_ino, std::move(door), listener, std::move(on_taken)));
}

ListenerHandover::ListenerHandover(std::string path, std::uint64_t inode, FileDescriptor door,
                                   int listener, std::function<void()> on_taken)
    : path_(std::move(path)),
      inode_(inode),
      door_(std::move(door)),
      listener_(listener),
      on_taken_(std::move(on_taken)),
      thread_([this] { serve(); }) {}

ListenerHandover::~ListenerHandover() {
  stopping_ = true;
  shutdown(door_.get(), SHUT_RDWR);  // accept returns
  thread_.join();
  struct stat status {};
  if (stat(path_.c_str(), &status) == 0 && status.st_ino == inode_) unlink(path_.c_str());
}

void ListenerHandover::serve() {
  while (!stopping_) {
    const FileDescriptor peer(accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer.valid() && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!peer.valid()) return;
    on_taken_();
    DescriptorMessage message;
    cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &listener_, sizeof listener_);
    if (sendmsg(peer.get(), &message.header, MSG_NOSIGNAL) != 1)
      log_warning("listening socket not passed", kv("reason", std::strerror(errno)));
  }
}

std::optional<FileDescriptor> ListenerHandover::take(const std::string& host, std::uint16_t port) {
  const auto path = path_of(host, port);
  if (!path.ok()) return std::nullopt;
  const auto address = address_of(*path);
  const FileDescriptor peer(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!address.ok() || !peer.valid() ||
      connect(peer.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return std::nullopt;
  setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  DescriptorMessage message;
  if (recvmsg(peer.get(), &message.header, MSG_CMSG_CLOEXEC) != 1 || message.byte != kListener)
    return std::nullopt;
  const cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS ||
      rights->cmsg_len != CMSG_LEN(sizeof(int)))
    return std::nullopt;
  int listener = -1;
  std::memcpy(&listener, CMSG_DATA(rights), sizeof listener);
  return FileDescriptor(listener);
}

}  // namespace troupe
