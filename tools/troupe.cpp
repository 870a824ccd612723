// The `troupe` binary: dispatches to subcommands.
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
    {"upgrade", troupe::tools::upgrade, "replace a running server without a pause"},
    {"node", troupe::tools::node, "one process of a topology, for other hosts"},
    {"topology", troupe::tools::topology, "draw a topology"},
    {"chat", troupe::tools::chat, "chat in the terminal"},
    {"generate", troupe::tools::generate,
     "batch inference: requests in, completions out, as JSON lines"},
    {"run-batch", troupe::tools::run_batch, "run a file of OpenAI's batch format"},
    {"bench", troupe::tools::bench, "benchmark latency, throughput, or a running server"},
    {"tokenize", troupe::tools::tokenize, "tokenize or detokenize, JSON lines in and out"},
    {"render", troupe::tools::render, "render the chat template, JSON lines in and out"},
    {"pull", troupe::tools::pull,
     "download a model of the Hugging Face Hub, or its newest revision"},
    {"list", troupe::tools::list, "list the models that have been downloaded"},
    {"cache-server", troupe::tools::cache_server, "keep KV caches for engines (lm:// of LMCache)"},
    {"config", troupe::tools::config, "print every option with its value and its source"},
};

constexpr int kNoCommand = -1;

void print_help() {
  std::printf("Troupe serves large language models. Usage: troupe COMMAND [arguments]\n\n");
  for (const Command& command : kCommands) std::printf("  %-12s %s\n", command.name, command.help);
  std::printf(
      "  %-12s print this help, or that of a command\n  %-12s print the version\n\n"
      "See `troupe help COMMAND` or `troupe COMMAND --help` for the options of a command.\n",
      "help", "version");
}

int print_version() {
  std::printf("troupe %s\n", TROUPE_VERSION);
  return troupe::tools::kExitOk;
}

/// kNoCommand: the command does not exist.
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
    text += ": options follow the command, as in troupe serve " + name;
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

/// Raises the limit of open files to its maximum: the soft limit, often 1024, exists for programs
/// that use select(2).
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
  // OpenSSL's cleanup at exit races with threads that end at the same time, and CAF's threads may
  // outlive their actors.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  try {
    return dispatch({argv + 1, argv + argc});
  } catch (...) {
    return troupe::tools::fail(
        {troupe::ErrorCode::kInternal, troupe::describe(std::current_exception())});
  }
}
