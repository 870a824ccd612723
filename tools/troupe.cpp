// The `troupe` binary: finds the subcommand and calls it.
#include <openssl/crypto.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstring>
#include <exception>

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

void print_help() {
  std::printf("Troupe serves large language models. Usage: troupe COMMAND [arguments]\n\n");
  for (const Command& command : kCommands) std::printf("  %-10s %s\n", command.name, command.help);
  std::printf(
      "\n  --version  print the version\n  --help     print this\n\n`troupe COMMAND --help` tells "
      "the rest.\n");
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
  raise_descriptor_limit();
  // OpenSSL's cleanup at exit frees what threads that end at that moment free as well, and CAF's
  // may outlive their actors.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    print_help();
    return arguments.empty() ? troupe::tools::kExitUsage : troupe::tools::kExitOk;
  }
  if (arguments[0] == "--version") {
    std::printf("troupe %s\n", TROUPE_VERSION);
    return troupe::tools::kExitOk;
  }
  for (const Command& command : kCommands) {
    if (arguments[0] != command.name) continue;
    try {
      return command.run(std::span(arguments).subspan(1));
    } catch (const std::exception& exception) {
      return troupe::tools::fail({troupe::ErrorCode::kInternal, exception.what()});
    }
  }
  return troupe::tools::fail(
      troupe::invalid_argument("unknown command '" + arguments[0] + "', see troupe --help"));
}
