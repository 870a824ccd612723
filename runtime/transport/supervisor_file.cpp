#include "runtime/transport/supervisor_file.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/base/file.hpp"
#include "runtime/transport/local_secret.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::string_view kSuffix = ".state";

std::string path_of(const std::string& folder, std::uint16_t port) {
  return folder + "/supervisor-" + std::to_string(port) + std::string(kSuffix);
}

}  // namespace

/// Fields 3 and 22 of /proc/PID/stat, counted after the name, which may contain anything.
std::optional<ProcessId> ProcessId::of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text, '\0');
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string state, skipped;
  fields >> state;
  for (int i = 4; i < 22; ++i) fields >> skipped;
  ProcessId process{.pid = pid};
  if (!(fields >> process.started) || state == "Z" || state == "X") return std::nullopt;
  return process;
}

std::string SupervisorRecord::encode() const {
  std::ostringstream text;
  text << "identity " << identity << "\nsupervisor " << process.pid << ' ' << process.started
       << "\nepoch " << epoch << "\nport " << port << "\nhttp-port " << http_port << '\n';
  for (const auto& [name, node] : nodes)
    text << "node " << node.pid << ' ' << node.started << ' ' << name << '\n';
  return text.str();
}

std::optional<SupervisorRecord> SupervisorRecord::decode(const std::string& text) {
  SupervisorRecord record;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string key;
    fields >> key;
    if (key == "identity") {
      fields >> record.identity;
    } else if (key == "supervisor") {
      fields >> record.process.pid >> record.process.started;
    } else if (key == "epoch") {
      fields >> record.epoch;
    } else if (key == "port") {
      fields >> record.port;
    } else if (key == "http-port") {
      fields >> record.http_port;
    } else if (key == "node") {
      auto& [name, node] = record.nodes.emplace_back();
      std::getline(fields >> node.pid >> node.started >> std::ws, name);
    } else {
      return std::nullopt;
    }
    if (!fields) return std::nullopt;
  }
  if (record.identity.empty() || record.process.pid == 0) return std::nullopt;
  return record;
}

Result<SupervisorFile> SupervisorFile::create(const SupervisorRecord& record) {
  ASSIGN_OR_RETURN(const std::string folder, private_folder());
  SupervisorFile file(path_of(folder, record.port));
  RETURN_IF_ERROR(file.write(record));
  return file;
}

Result<void> SupervisorFile::write(const SupervisorRecord& record) const {
  return replace_private_file(path_, record.encode());
}

SupervisorFile::~SupervisorFile() {
  if (!path_.empty()) unlink(path_.c_str());
}

std::optional<SupervisorRecord> SupervisorFile::find(pid_t supervisor) {
  const auto folder = private_folder();
  if (!folder.ok()) return std::nullopt;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(*folder, ignored)) {
    if (entry.path().extension() != kSuffix) continue;
    const auto text = read_file(entry.path().string(), kMaxFileBytes);
    auto record = text.ok() ? SupervisorRecord::decode(*text) : std::nullopt;
    if (record && record->process.pid == supervisor) return record;
  }
  return std::nullopt;
}

std::optional<SupervisorRecord> SupervisorFile::find_dead(const std::string& identity,
                                                          std::uint16_t port) {
  const auto folder = private_folder();
  if (!folder.ok()) return std::nullopt;
  std::optional<SupervisorRecord> newest;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(*folder, ignored)) {
    if (entry.path().extension() != kSuffix) continue;
    const auto text = read_file(entry.path().string(), kMaxFileBytes);
    auto record = text.ok() ? SupervisorRecord::decode(*text) : std::nullopt;
    if (!record || record->process.is_alive()) continue;
    std::erase_if(record->nodes, [](const auto& node) { return !node.second.is_alive(); });
    if (record->nodes.empty()) {
      std::filesystem::remove(entry.path(), ignored);
      continue;
    }
    if (record->identity != identity || (port != 0 && record->port != port)) continue;
    if (!newest || record->process.started > newest->process.started) newest = std::move(record);
  }
  return newest;
}

}  // namespace troupe
