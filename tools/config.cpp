// troupe config: prints every option with its value and its source; or the models that it knows.
#include <algorithm>
#include <cstdio>
#include <string>

#include "runtime/models/registry.hpp"
#include "tools/commands.hpp"

namespace troupe::tools {
namespace {

/// One line for each architecture.
void print_models() {
  const auto print = [](std::string_view architecture, std::string_view type,
                        std::string_view gguf) {
    std::printf("%-32s  %-12s  %s\n", std::string(architecture).c_str(), std::string(type).c_str(),
                std::string(gguf).c_str());
  };
  print("architecture (config.json)", "model_type", "architecture in GGUF files");
  for (const RegisteredArchitecture* known : registered_architectures())
    print(known->name, known->model_type, known->gguf == nullptr ? "-" : known->gguf->name);
}

}  // namespace

int config(Arguments arguments) {
  if (std::ranges::find(arguments, "--models") != arguments.end() && !help_request(arguments)) {
    print_models();
    return kExitOk;
  }
  CommandLine line;
  if (const auto done = read_command_line(line, arguments,
                                          "config [MODEL] [options] | config "
                                          "--models"))
    return *done;
  std::fputs(line.set.dump().c_str(), stdout);
  for (const ConfigEntry& entry : line.caf_entries) {
    std::printf("%s.%s = %s  (file, for CAF)\n", entry.section.c_str(), entry.key.c_str(),
                entry.value.c_str());
  }
  return kExitOk;
}

}  // namespace troupe::tools
