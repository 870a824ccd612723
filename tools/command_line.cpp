// Shared by the subcommands: options, model lookup, error reporting.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>

#include "runtime/config/speculative_config.hpp"
#include "tools/commands.hpp"
#include "tools/keeper.hpp"

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
  tell_keeper(kFailureReport, error.message);
  return error.code == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailure;
}

std::optional<HelpRequest> help_request(Arguments arguments) {
  std::optional<HelpRequest> asked;
  for (const std::string& argument : arguments) {
    if (argument == "--help=all") asked = HelpRequest::kAll;
    if ((argument == "--help" || argument == "-h") && !asked) asked = HelpRequest::kShort;
  }
  return asked;
}

std::optional<int> read_command_line(CommandLine& line, Arguments arguments, std::string_view usage,
                                     bool model_positional) {
  if (const auto asked = help_request(arguments)) {
    const bool all = asked == HelpRequest::kAll;
    std::printf("usage: troupe %s\n%s\n", std::string(usage).c_str(), line.set.help(all).c_str());
    std::printf(
        "%sOptions without INT, FLOAT or TEXT are flags: --NAME, or --no-NAME for false.\n"
        "Options can also be set by environment variables: TROUPE_MAX_MODEL_LEN for "
        "--max-model-len.\n",
        all ? "" : "These are the common options; --help=all shows all of them.\n");
    return kExitOk;
  }
  auto rest = load_options(line.set, line.options, arguments, environment(), line.caf_entries);
  if (!rest.ok()) return fail(rest.error());
  line.positionals = std::move(rest).value();
  line.options.read_again =
      [given = std::vector<std::string>(arguments.begin(), arguments.end())]() -> Result<Options> {
    CommandLine again;
    RETURN_IF_ERROR(
        load_options(again.set, again.options, given, environment(), again.caf_entries));
    return std::move(again.options);
  };
  if (model_positional && !line.positionals.empty()) {
    line.options.model.model = line.positionals.front();
    line.positionals.erase(line.positionals.begin());
  }
  if (!line.positionals.empty() && model_positional) {
    return fail(invalid_argument("unexpected argument '" + line.positionals.front() + "'"));
  }
  if (auto valid = validate(line.options); !valid.ok()) return fail(valid.error());
  set_log_level(line.options.log.log_level);
  if (line.tells_notes)
    for (const std::string& note : line.set.notes()) log_warning(note);
  return std::nullopt;
}

namespace {

/// OWNER/NAME on the Hugging Face Hub; empty: `model` has another form.
std::string hub_name(std::string model) {
  for (const std::string_view prefix : {"https://huggingface.co/", "https://hf.co/", "hf://"})
    if (model.starts_with(prefix)) model.erase(0, prefix.size());
  const auto is_part = [](std::string_view part) {
    return !part.empty() && part[0] != '.' && std::all_of(part.begin(), part.end(), [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
    });
  };
  const std::size_t slash = model.find('/');
  if (slash == std::string::npos) return "";
  const std::string_view owner = std::string_view(model).substr(0, slash);
  const std::string_view name = std::string_view(model).substr(slash + 1);
  return is_part(owner) && is_part(name) && !name.ends_with(".gguf") ? model : "";
}

}  // namespace

Result<void> check_model_exists(const std::string& model) {
  std::error_code ignored;
  if (std::filesystem::exists(model, ignored)) return {};
  std::string text = "no folder or GGUF file '" + model + "'";
  if (const std::string hub = hub_name(model); !hub.empty()) {
    const std::string folder = hub.substr(hub.find('/') + 1);
    text +=
        "; Troupe downloads nothing. Models of the Hugging Face Hub can be downloaded with\n"
        "  pip install huggingface_hub && hf download " +
        hub + " --local-dir " + folder + "\nand loaded as " + folder;
  }
  return Error{ErrorCode::kNotFound, text, "model"};
}

Result<std::string> model_folder(const Options& options) {
  namespace fs = std::filesystem;
  const auto speculative = parse_speculative_config(options.engine.speculative_config,
                                                    options.engine.tensor_parallel_size);
  if (speculative.ok() && !speculative->draft_model.empty())
    RETURN_IF_ERROR(check_model_exists(speculative->draft_model));
  if (!options.model.model.empty()) {
    RETURN_IF_ERROR(check_model_exists(options.model.model));
    return options.model.model;
  }
  const fs::path binary = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& place : {binary / "demo_model", binary / "../share/troupe/demo_model"}) {
    if (fs::exists(place / "config.json")) return fs::weakly_canonical(place).string();
  }
  return Error{ErrorCode::kNotFound,
               "no model was given, and the demo model is not next to the binary, in '" +
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
