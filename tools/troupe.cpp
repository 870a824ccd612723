// The `troupe` binary: finds the subcommand and calls it.
#include <openssl/crypto.h>
#include <sys/resource.h>

#include <cstdio>
#include <exception>
#include <filesystem>

#include "actors/exceptions.hpp"
#include "runtime/config/suggest.hpp"
#include "tools/commands.hpp"

namespace {

struct Command {
  const char* name;
  int (*run)(troupe::tools::Arguments);
  const char* help;
};

constexpr Command kCommands[] = {
    {"serve", troupe::tools::serve, "serve a model over the OpenAI HTTP API"},
    {"node", troupe::tools::node, "one process of a topology; serve starts those of its own host"},
    {"topology", troupe::tools::topology, "draw what a configuration file makes run where"},
    {"chat", troupe::tools::chat, "talk to a model in the terminal"},
    {"generate", troupe::tools::generate, "requests in, completions out, as JSON lines"},
    {"bench", troupe::tools::bench, "measure latency, throughput, or a running server"},
    {"tokenize", troupe::tools::tokenize, "texts or token ids in, the other out, as JSON lines"},
    {"render", troupe::tools::render, "conversations in, prompts out, as JSON lines"},
    {"config", troupe::tools::config, "print every option with its value and where it came from"},
};

constexpr int kNoCommand = -1;

void print_help() {
  std::printf("Troupe serves large language models. Usage: troupe COMMAND [arguments]\n\n");
  for (const Command& command : kCommands) std::printf("  %-10s %s\n", command.name, command.help);
  std::printf(
      "  %-10s this, or the help of a command\n  %-10s print the version\n\n"
      "`troupe help COMMAND` or `troupe COMMAND --help` tells the rest.\n",
      "help", "version");
}

int print_version() {
  std::printf("troupe %s\n", TROUPE_VERSION);
  return troupe::tools::kExitOk;
}

/// kNoCommand: there is none of that name.
int run(const std::string& name, troupe::tools::Arguments arguments) {
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run(arguments);
  }
  return kNoCommand;
}

int unknown_command(const std::string& name) {
  std::string text = "unknown command '" + name + "'";
  std::vector<std::string> names = {"help", "version"};
  for (const Command& command : kCommands) names.emplace_back(command.name);
  const std::string meant = troupe::closest(name, names);
  std::error_code ignored;
  if (!meant.empty()) {
    text += ", did you mean 'troupe " + meant + "'?";
  } else if (name.starts_with("-")) {
    text += ": options stand behind the command, as in troupe serve " + name;
  } else if (std::filesystem::exists(name, ignored)) {
    text += ", did you mean 'troupe serve " + name + "'?";
  } else {
    text += ", see troupe help";
  }
  return troupe::tools::fail(troupe::invalid_argument(text));
}

int dispatch(std::vector<std::string> arguments) {
  const bool wants_help = !arguments.empty() && (arguments[0] == "help" ||
                                                 arguments[0] == "--help" || arguments[0] == "-h");
  if (arguments.empty() || (wants_help && arguments.size() == 1)) {
    print_help();
    return arguments.empty() ? troupe::tools::kExitUsage : troupe::tools::kExitOk;
  }
  if (arguments[0] == "version" || arguments[0] == "--version" || arguments[0] == "-V")
    return print_version();
  if (wants_help) {
    arguments.erase(arguments.begin());
    if (arguments[0] == "help" || arguments[0] == "version") {
      print_help();
      return troupe::tools::kExitOk;
    }
    arguments.emplace_back("--help");
  }
  const int code = run(arguments[0], std::span<const std::string>(arguments).subspan(1));
  return code == kNoCommand ? unknown_command(arguments[0]) : code;
}

/// As many connections as the system lets us have: the soft limit is there for programs that use
/// select(2), and often 1024.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int main(int argc, char** argv) {
  troupe::tools::explain_fatal_errors();
  raise_descriptor_limit();
  // OpenSSL's cleanup at exit frees what threads that end at that moment free as well, and CAF's
  // may outlive their actors.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  try {
    return dispatch({argv + 1, argv + argc});
  } catch (...) {
    return troupe::tools::fail(
        {troupe::ErrorCode::kInternal, troupe::describe(std::current_exception())});
  }
}
