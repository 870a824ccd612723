#pragma once
// What a Supervisor leaves on its host for the one that is started after its process has died:
// where the nodes look for it, and which of them are processes of its own. It is removed at an
// orderly end.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

/// A process, also when its number has been given to another one.
struct ProcessId {
  pid_t pid = 0;
  std::uint64_t started = 0;  ///< in the kernel's ticks since boot
  bool operator==(const ProcessId&) const = default;

  /// Of a process that runs; none: there is no such process.
  [[nodiscard]] static std::optional<ProcessId> of(pid_t pid);
  [[nodiscard]] bool is_alive() const { return of(pid) == *this; }
};

struct SupervisorRecord {
  std::string identity;  ///< of its command line: another one of the same may take over
  ProcessId process;
  std::uint64_t epoch = 0;
  std::uint16_t port = 0;                                ///< where nodes join
  std::uint16_t http_port = 0;                           ///< 0: none yet
  std::vector<std::pair<std::string, ProcessId>> nodes;  ///< that it has started

  [[nodiscard]] std::string encode() const;
  /// None: it is no such text.
  [[nodiscard]] static std::optional<SupervisorRecord> decode(const std::string& text);
};

/// The file of a Supervisor, beside the LocalSecret's, where only the same user can read it.
class SupervisorFile {
 public:
  /// Errors: kIo; the folder is another's, or others may look into it.
  [[nodiscard]] static Result<SupervisorFile> create(const SupervisorRecord& record);
  /// Removes the file.
  ~SupervisorFile();
  SupervisorFile(SupervisorFile&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  SupervisorFile& operator=(SupervisorFile&&) = delete;

  [[nodiscard]] Result<void> write(const SupervisorRecord& record) const;

  /// Of a Supervisor with this identity whose process has died, but some of its nodes have not;
  /// `port` 0: of any. Only those nodes are in it. Files of which nothing runs are removed.
  [[nodiscard]] static std::optional<SupervisorRecord> find_dead(const std::string& identity,
                                                                 std::uint16_t port);
  /// Of the Supervisor in this process.
  [[nodiscard]] static std::optional<SupervisorRecord> find(pid_t supervisor);

 private:
  explicit SupervisorFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace troupe
