#pragma once
// What the keeper of `troupe serve --keep-alive`, the servers that it starts and `troupe upgrade`
// say to each other: lines of text, none of which depends on the version of the messages between
// actors.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "tools/commands.hpp"

namespace troupe::tools {

/// What a keeper passes to a server in a last argument of its own.
struct KeptServer {
  int pipe = -1;                    ///< it reports here
  std::uint16_t replaces_port = 0;  ///< of the server that it is to replace; 0: none

  [[nodiscard]] std::string encode() const;
  /// Removes the argument. None: this server has no keeper.
  [[nodiscard]] static std::optional<KeptServer> take(Arguments& arguments);
};

/// A server that runs, passed by a keeper to the next image of its process.
struct RunningServer {
  pid_t pid = 0;
  std::uint16_t port = 0;
  int pipe = -1;  ///< the end of the pipe that the keeper reads

  [[nodiscard]] std::string encode() const;
  /// Removes the argument. None: this is no keeper's next image.
  [[nodiscard]] static std::optional<RunningServer> take(Arguments& arguments);
};

/// `troupe serve` with these arguments in a child process, again whenever a signal has ended it.
/// `running`: it has been started already.
int keep_alive(Arguments arguments, const std::optional<RunningServer>& running);

/// Reports of a server to its keeper; without one they go nowhere.
inline constexpr std::string_view kReadyReport = "ready ";        ///< and the port
inline constexpr std::string_view kProgressReport = "progress ";  ///< and the fraction
inline constexpr std::string_view kFailureReport = "failed ";     ///< and why
inline constexpr std::string_view kAliveReport = "alive ";  ///< and the seconds until the next one
/// Pre: `pipe` stays open. Later programs of this process do not inherit it.
void report_to_keeper(int pipe);
void tell_keeper(std::string_view report, const std::string& text);

/// From `troupe upgrade` to the keeper.
struct UpgradeOrder {
  std::string program;
  double deadline_s = 0;                              ///< for the new server to become ready
  std::optional<std::vector<std::string>> arguments;  ///< of `troupe serve`; none: as before

  [[nodiscard]] std::string encode() const;
  /// None: it is no such text.
  [[nodiscard]] static std::optional<UpgradeOrder> decode(const std::string& text);
};

/// The last line of the answer to an order: this, or kFailureReport and why.
inline constexpr std::string_view kUpgraded = "done";

/// Where the keeper of this process id takes orders. Errors: kIo.
[[nodiscard]] Result<std::string> keeper_socket(pid_t pid);
/// The process ids of this user's keepers.
[[nodiscard]] std::vector<pid_t> find_keepers();

}  // namespace troupe::tools
