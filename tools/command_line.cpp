// What the subcommands share: reading options, finding the model, reporting errors.
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "tools/commands.hpp"

extern char** environ;

namespace troupe::tools {

std::vector<std::string> environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  return variables;
}

int fail(const Error& error) {
  std::fprintf(stderr, "troupe: %s\n", error.message.c_str());
  return error.code == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailure;
}

std::optional<int> read_command_line(CommandLine& line, Arguments arguments, std::string_view usage,
                                     bool model_positional) {
  for (const std::string& argument : arguments) {
    if (argument != "--help" && argument != "-h") continue;
    std::printf(
        "usage: troupe %s\n\n  --config-file FILE%20s the same keys, in sections [model], "
        "[engine], ...\n%s\n",
        std::string(usage).c_str(), "", line.set.help().c_str());
    std::printf(
        "Options without INT, FLOAT or TEXT are flags: --NAME, or --no-NAME for false.\n"
        "Every option may also be given as an environment variable: TROUPE_MAX_MODEL_LEN for "
        "--max-model-len.\n");
    return kExitOk;
  }
  auto rest = load_options(line.set, line.options, arguments, environment(), line.caf_entries);
  if (!rest.ok()) return fail(rest.error());
  line.positionals = std::move(rest).value();
  if (model_positional && !line.positionals.empty()) {
    line.options.model.model = line.positionals.front();
    line.positionals.erase(line.positionals.begin());
  }
  if (!line.positionals.empty() && model_positional) {
    return fail(invalid_argument("unexpected argument '" + line.positionals.front() + "'"));
  }
  if (auto valid = validate(line.options); !valid.ok()) return fail(valid.error());
  set_log_level(line.options.log.log_level);
  return std::nullopt;
}

Result<std::string> model_folder(const Options& options) {
  namespace fs = std::filesystem;
  if (!options.model.model.empty()) return options.model.model;
  const fs::path binary = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& place : {binary / "demo_model", binary / "../share/troupe/demo_model"}) {
    if (fs::exists(place / "config.json")) return fs::weakly_canonical(place).string();
  }
  return Error{ErrorCode::kNotFound,
               "no model was named, and the demo model is not beside the binary, in '" +
                   (binary / "demo_model").string() + "'"};
}

Result<void> resolve_model(Options& options) {
  ASSIGN_OR_RETURN(const std::string folder, model_folder(options));
  std::string& model = options.model.model;
  if (options.model.served_model_name.empty())
    options.model.served_model_name = {model.empty() ? "demo" : model};
  model = folder;
  return {};
}

}  // namespace troupe::tools
