// troupe upgrade: replaces a server that runs, as its keeper does it.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>

#include "runtime/base/file_descriptor.hpp"
#include "tools/keeper.hpp"

namespace troupe::tools {
namespace {

constexpr const char* kUpgradeUsage =
    "usage: troupe upgrade [--pid PID] [--program FILE] [--deadline-s S] [-- ARGUMENTS]\n\n"
    "Replaces a server that was started by `troupe serve --keep-alive` without downtime: by\n"
    "another build, another configuration or another topology.\n\n"
    "  --pid PID        the process of `troupe serve --keep-alive`; default: the only one of this\n"
    "                   user\n"
    "  --program FILE   the program troupe of the new server; default: that of this command\n"
    "  --deadline-s S   seconds within which the new server must be ready; default: 600\n"
    "  -- ARGUMENTS     of `troupe serve`; default: those of the old server. The configuration\n"
    "                   file is read again in either case. Paths are relative to the working\n"
    "                   directory of the server\n\n"
    "Steps:\n"
    "  1. The new server is started while the old one serves: Supervisor, nodes, workers, with a\n"
    "     KV cache of its own. This takes memory for both.\n"
    "  2. When it is ready, its Frontend takes over the listening socket. Both accept for a\n"
    "     moment; no connection is refused or reset.\n"
    "  3. The old server accepts no more connections, and finishes the open ones: streams\n"
    "     continue in the engine in which they began. A connection that is kept open between\n"
    "     requests is closed with its next response, or after 2 seconds without a request.\n"
    "  4. After its last connection the old server exits, with all of its processes; then the\n"
    "     process --pid executes the new program itself, and keeps its process id.\n"
    "If anything fails before step 2 (a wrong configuration, a program that does not start, too\n"
    "little memory, the deadline), the new server is ended, the old one keeps serving, and this\n"
    "command prints the reason and returns 1.\n\n"
    "The two servers share only the listening socket and, with --resume, the folder of streams,\n"
    "so they may be of any two versions that have this command. Addresses that both need at the\n"
    "same time, such as a fixed --supervisor-port or an endpoint of KV events, must differ. Start\n"
    "nodes on other hosts for the new Supervisor at its own port. Metrics start at zero. If this\n"
    "command is interrupted, the upgrade continues.\n";

struct Call {
  std::optional<pid_t> pid;
  UpgradeOrder order{.program = {}, .deadline_s = 600};
};

Result<Call> parse(Arguments arguments) {
  Call call;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i];
    if (name == "--") {
      call.order.arguments.emplace(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                   arguments.end());
      return call;
    }
    std::string value;
    if (const std::size_t equals = name.find('='); equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    }
    const auto number = [&](auto& into) {
      const char* const end = value.data() + value.size();
      const auto read = std::from_chars(value.data(), end, into);
      return read.ec == std::errc() && read.ptr == end && into > 0;
    };
    bool is_valid = !value.empty();
    if (name == "--pid") {
      is_valid = is_valid && number(call.pid.emplace());
    } else if (name == "--program") {
      call.order.program = value;
    } else if (name == "--deadline-s") {
      is_valid = is_valid && number(call.order.deadline_s);
    } else {
      return invalid_argument("unknown argument '" + name +
                              "', see troupe help upgrade; options of the server follow --");
    }
    if (!is_valid) return invalid_argument(name + " has no valid value: '" + value + "'");
  }
  return call;
}

Result<pid_t> find_keeper(const std::optional<pid_t>& wanted) {
  const std::vector<pid_t> found = find_keepers();
  if (wanted && std::find(found.begin(), found.end(), *wanted) == found.end()) {
    return Error{ErrorCode::kNotFound, "process " + std::to_string(*wanted) +
                                           " is not a `troupe serve --keep-alive` of this user"};
  }
  if (wanted) return *wanted;
  if (found.empty()) {
    return Error{ErrorCode::kNotFound,
                 "no server to upgrade: none of this user was started with --keep-alive"};
  }
  if (found.size() == 1) return found.front();
  std::string text = "several servers run, choose one with --pid:";
  for (const pid_t pid : found) text += " " + std::to_string(pid);
  return invalid_argument(text);
}

Result<FileDescriptor> connect_to(pid_t keeper) {
  ASSIGN_OR_RETURN(const std::string path, keeper_socket(keeper));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return Error{ErrorCode::kIo, path + " is too long"};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  FileDescriptor peer(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!peer.valid() ||
      connect(peer.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return Error{ErrorCode::kIo, path + ": " + std::strerror(errno)};
  return peer;
}

/// Prints what the keeper says; whether the last line was that it is done.
bool print_answer(int peer) {
  std::string text, last;
  std::array<char, 4096> piece;
  for (ssize_t size = 0; (size = read(peer, piece.data(), piece.size())) > 0;) {
    text.append(piece.data(), static_cast<std::size_t>(size));
    for (std::size_t end = 0; (end = text.find('\n')) != std::string::npos;
         text.erase(0, end + 1)) {
      last = text.substr(0, end);
      if (!last.starts_with(kFailureReport)) std::printf("%s\n", last.c_str());
    }
    std::fflush(stdout);
  }
  if (last == kUpgraded) return true;
  const bool says_why = last.starts_with(kFailureReport);
  fail({ErrorCode::kInternal,
        says_why ? "the old server keeps serving: " + last.substr(kFailureReport.size())
                 : std::string("the keeper has ended")});
  return false;
}

}  // namespace

int upgrade(Arguments arguments) {
  if (help_request(arguments.first(static_cast<std::size_t>(
          std::find(arguments.begin(), arguments.end(), "--") - arguments.begin())))) {
    std::fputs(kUpgradeUsage, stdout);
    return kExitOk;
  }
  auto call = parse(arguments);
  if (!call.ok()) return fail(call.error());
  std::error_code ignored;
  std::string& program = call->order.program;
  if (program.empty()) program = "/proc/self/exe";
  if (access(program.c_str(), X_OK) != 0)
    return fail({ErrorCode::kNotFound, program + " is not a program: " + std::strerror(errno)});
  program = std::filesystem::canonical(program, ignored).string();
  const auto keeper = find_keeper(call->pid);
  if (!keeper.ok()) return fail(keeper.error());
  const auto peer = connect_to(*keeper);
  if (!peer.ok()) return fail(peer.error());
  const std::string order = call->order.encode();
  for (std::size_t sent = 0; sent < order.size();) {
    const ssize_t size = send(peer->get(), order.data() + sent, order.size() - sent, MSG_NOSIGNAL);
    if (size <= 0) return fail({ErrorCode::kIo, std::string("keeper: ") + std::strerror(errno)});
    sent += static_cast<std::size_t>(size);
  }
  shutdown(peer->get(), SHUT_WR);
  return print_answer(peer->get()) ? kExitOk : kExitFailure;
}

}  // namespace troupe::tools
