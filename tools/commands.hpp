#pragma once
// The subcommands of `troupe`. Each takes the arguments after its name and returns the process's
// exit code.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/log.hpp"
#include "runtime/base/result.hpp"
#include "runtime/config/options.hpp"
#include "runtime/hub/hub_settings.hpp"

namespace troupe::tools {

using Arguments = std::span<const std::string>;

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;  ///< runtime error: a model does not load, a port is in use
inline constexpr int kExitUsage = 2;    ///< invalid command line, environment or configuration file

int serve(Arguments arguments);
int node(Arguments arguments);
int topology(Arguments arguments);
int generate(Arguments arguments);
int run_batch(Arguments arguments);
int chat(Arguments arguments);
int bench(Arguments arguments);
int tokenize(Arguments arguments);
int render(Arguments arguments);
int config(Arguments arguments);
int upgrade(Arguments arguments);
int pull(Arguments arguments);
int list(Arguments arguments);
int cache_server(Arguments arguments);

/// The engine's options from file, environment and command line, as every command that runs an
/// engine reads them.
struct CommandLine {
  Options options;
  OptionSet set;
  std::vector<std::string> positionals;
  std::vector<ConfigEntry> caf_entries;
  bool tells_notes = true;  ///< options without effect are logged

  CommandLine() { bind_options(set, options); }
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
};

/// Fills `line`. The first positional argument, if any, is the model, unless `model_positional` is
/// false. Returns an exit code if the command is done after printing help or an error; otherwise
/// nullopt.
[[nodiscard]] std::optional<int> read_command_line(CommandLine& line, Arguments arguments,
                                                   std::string_view usage,
                                                   bool model_positional = true);

/// The kind of help requested by `--help`; nullopt: none.
enum class HelpRequest : std::uint8_t { kShort, kAll };
[[nodiscard]] std::optional<HelpRequest> help_request(Arguments arguments);

/// The folder or GGUF file of a model that is given by its path, or by its name on the Hugging Face
/// Hub: from the cache, or downloaded with a progress bar. Errors: there is no such file, those of
/// find_or_pull_model.
[[nodiscard]] Result<std::string> locate_model(const std::string& model,
                                               const ModelOptions& options);

/// Sets the folders of the model and of the draft model, the model's name in the API if none is
/// given, and for a model of the Hub the commit. The default is the demo model installed with the
/// binary. Errors: as locate_model.
[[nodiscard]] Result<void> resolve_model(Options& options);

/// From the environment; the folder, if any, replaces that of the cache.
[[nodiscard]] HubSettings hub_settings_of(const std::string& download_dir);

/// Reports uncaught exceptions in a sentence on standard error.
void explain_fatal_errors();

/// Prints "troupe: <message>" to standard error, tells it the keeper of this server if there is
/// one, and returns the exit code for it.
int fail(const Error& error);

[[nodiscard]] std::vector<std::string> environment();

}  // namespace troupe::tools
