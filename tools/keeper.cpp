#include "tools/keeper.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "runtime/transport/local_secret.hpp"

namespace troupe::tools {
namespace {

constexpr std::string_view kKeptBy = "--kept-by=";
constexpr std::string_view kKeeps = "--keeps=";
constexpr std::string_view kSocketName = "keeper-";
/// The first field of an order; another one would be of a later version.
constexpr std::string_view kOrder = "upgrade 1";
constexpr std::string_view kSame = "same";
constexpr std::string_view kOther = "other";

int keeper_pipe = -1;

template <class Number>
bool read_number(std::string_view& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return error == std::errc();
}

/// Numbers with commas between them behind the option, which is the last argument and is removed.
template <class... Numbers>
bool take_numbers(Arguments& arguments, std::string_view option, Numbers&... numbers) {
  if (arguments.empty() || !arguments.back().starts_with(option)) return false;
  std::string text = arguments.back().substr(option.size()) + ',';
  std::string_view rest = text;
  const auto take = [&](auto& number) {
    const bool is_read = read_number(rest, number) && rest.starts_with(',');
    if (is_read) rest.remove_prefix(1);
    return is_read;
  };
  if (!(take(numbers) && ...) || !rest.empty()) return false;
  arguments = arguments.first(arguments.size() - 1);
  return true;
}

}  // namespace

std::string KeptServer::encode() const {
  return std::string(kKeptBy) + std::to_string(pipe) + "," + std::to_string(replaces_port);
}

std::optional<KeptServer> KeptServer::take(Arguments& arguments) {
  KeptServer kept;
  if (!take_numbers(arguments, kKeptBy, kept.pipe, kept.replaces_port)) return std::nullopt;
  return kept;
}

std::string RunningServer::encode() const {
  return std::string(kKeeps) + std::to_string(pid) + "," + std::to_string(port) + "," +
         std::to_string(pipe);
}

std::optional<RunningServer> RunningServer::take(Arguments& arguments) {
  RunningServer running;
  if (!take_numbers(arguments, kKeeps, running.pid, running.port, running.pipe))
    return std::nullopt;
  return running;
}

void report_to_keeper(int pipe) {
  fcntl(pipe, F_SETFD, FD_CLOEXEC);
  std::signal(SIGPIPE, SIG_IGN);  // the keeper may be gone
  keeper_pipe = pipe;
}

void tell_keeper(std::string_view report, const std::string& text) {
  if (keeper_pipe < 0) return;
  std::string line = std::string(report) + text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  const ssize_t written = write(keeper_pipe, line.data(), line.size());
  static_cast<void>(written);  // a client that does not read is ignored
}

std::string UpgradeOrder::encode() const {
  std::string text;
  const auto add = [&](std::string_view field) { text.append(field).append(1, '\0'); };
  add(kOrder);
  add(program);
  add(std::to_string(deadline_s));
  add(arguments ? kOther : kSame);
  for (const std::string& argument : arguments.value_or(std::vector<std::string>())) add(argument);
  return text;
}

std::optional<UpgradeOrder> UpgradeOrder::decode(const std::string& text) {
  std::vector<std::string> fields;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\0', begin);
    if (end == std::string::npos) return std::nullopt;
    fields.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  constexpr std::size_t kNumFields = 4;
  if (fields.size() < kNumFields || fields[0] != kOrder) return std::nullopt;
  UpgradeOrder order{.program = fields[1]};
  std::string_view number = fields[2];
  if (!read_number(number, order.deadline_s) || !number.empty()) return std::nullopt;
  if (fields[3] == kOther) {
    order.arguments.emplace(fields.begin() + kNumFields, fields.end());
  } else if (fields[3] != kSame || fields.size() > kNumFields) {
    return std::nullopt;
  }
  return order;
}

Result<std::string> keeper_socket(pid_t pid) {
  ASSIGN_OR_RETURN(const std::string folder, private_folder());
  return folder + "/" + std::string(kSocketName) + std::to_string(pid);
}

std::vector<pid_t> find_keepers() {
  std::vector<pid_t> found;
  const auto folder = private_folder();
  if (!folder.ok()) return found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(*folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kSocketName)) continue;
    std::string_view text = std::string_view(name).substr(kSocketName.size());
    pid_t pid = 0;
    if (!read_number(text, pid) || !text.empty()) continue;
    if (kill(pid, 0) == 0) {
      found.push_back(pid);
    } else {
      std::filesystem::remove(entry.path(), ignored);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace troupe::tools
