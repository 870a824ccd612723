// Shared by the subcommands: options, model lookup, error reporting.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "runtime/config/speculative_config.hpp"
#include "runtime/hub/hub_cache.hpp"
#include "runtime/hub/pull.hpp"
#include "tools/commands.hpp"
#include "tools/keeper.hpp"
#include "tools/progress.hpp"

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

Result<std::string> locate_model(const std::string& model, const ModelOptions& options) {
  std::error_code ignored;
  if (std::filesystem::exists(model, ignored)) return model;
  auto reference = parse_hub_reference(model);
  if (!reference) {
    return Error{ErrorCode::kNotFound,
                 "no folder or GGUF file '" + model +
                     "', and no name of a model on the Hugging Face Hub, OWNER/NAME, "
                     "OWNER/NAME@REVISION or OWNER/NAME:FILE.gguf",
                 "model"};
  }
  if (reference->revision.empty()) reference->revision = options.revision;
  ProgressBar progress("downloading");
  auto found = find_or_pull_model(
      *reference, hub_settings_of(options.download_dir),
      [&](double fraction, const std::string& what) { progress.show(fraction, what); });
  progress.finish();
  if (!found.ok()) return found.error();
  return found->string();
}

HubSettings hub_settings_of(const std::string& download_dir) {
  HubSettings settings = hub_settings([](const char* name) { return std::getenv(name); });
  if (!download_dir.empty()) settings.cache = download_dir;
  return settings;
}

namespace {

/// Brings the draft model of speculative decoding here, and puts its folder in its place.
Result<void> resolve_draft_model(Options& options) {
  std::string& text = options.engine.speculative_config;
  const auto speculative = parse_speculative_config(text, options.engine.tensor_parallel_size);
  if (!speculative.ok() || speculative->draft_model.empty()) return {};
  ModelOptions draft = options.model;
  draft.revision.clear();  // of the model itself
  ASSIGN_OR_RETURN(const std::string folder, locate_model(speculative->draft_model, draft));
  text = with_draft_model(text, folder);
  return {};
}

Result<std::string> demo_model() {
  namespace fs = std::filesystem;
  const fs::path binary = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& place : {binary / "demo_model", binary / "../share/troupe/demo_model"}) {
    if (fs::exists(place / "config.json")) return fs::weakly_canonical(place).string();
  }
  return Error{ErrorCode::kNotFound,
               "no model was given, and the demo model is not next to the binary, in '" +
                   (binary / "demo_model").string() + "'"};
}

}  // namespace

Result<void> resolve_model(Options& options) {
  RETURN_IF_ERROR(resolve_draft_model(options));
  ModelOptions& model = options.model;
  const std::string given = model.model;
  if (given.empty()) {
    ASSIGN_OR_RETURN(model.model, demo_model());
  } else {
    ASSIGN_OR_RETURN(model.model, locate_model(given, model));
  }
  std::string name = given.empty() ? "demo" : given;
  const auto reference = model.model == given ? std::nullopt : parse_hub_reference(given);
  if (reference) {
    name = HubReference{.repository = reference->repository, .file = reference->file}.text();
    // What nodes of this engine load, also if the branch has moved on meanwhile.
    model.revision = HubCache::commit_of_path(model.model);
  }
  if (!model.mmproj.empty()) {
    ModelOptions encoder = model;
    encoder.revision.clear();  // of the model itself
    auto located = locate_model(model.mmproj, encoder);
    if (!located.ok())
      return Error{located.error().code, "mmproj: " + located.error().message, "mmproj"};
    model.mmproj = std::move(located).value();
  }
  if (model.served_model_name.empty()) model.served_model_name = {name};
  return {};
}

}  // namespace troupe::tools
