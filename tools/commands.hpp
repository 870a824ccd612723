#pragma once
// The subcommands of `troupe`. Each takes the arguments behind its name and returns the process's
// exit code.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/log.hpp"
#include "runtime/base/result.hpp"
#include "runtime/config/options.hpp"

namespace troupe::tools {

using Arguments = std::span<const std::string>;

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure =
    1;  ///< the world is wrong: a model does not load, a port is taken
inline constexpr int kExitUsage =
    2;  ///< the command line, environment or configuration file is wrong

int serve(Arguments arguments);
int node(Arguments arguments);
int topology(Arguments arguments);
int generate(Arguments arguments);
int chat(Arguments arguments);
int bench(Arguments arguments);
int tokenize(Arguments arguments);
int render(Arguments arguments);
int config(Arguments arguments);

/// The engine's options from file, environment and command line, as every command that runs an
/// engine reads them.
struct CommandLine {
  Options options;
  OptionSet set;
  std::vector<std::string> positionals;
  std::vector<ConfigEntry> caf_entries;
  bool tells_notes = true;  ///< what was given and has no effect is logged

  CommandLine() { bind_options(set, options); }
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
};

/// Fills `line`. The first positional, if there is one, is the model, unless `model_positional` is
/// false. Prints help or the error and returns an exit code if the command is done with that;
/// otherwise nothing.
[[nodiscard]] std::optional<int> read_command_line(CommandLine& line, Arguments arguments,
                                                   std::string_view usage,
                                                   bool model_positional = true);

/// What `troupe COMMAND --help` asks for; nothing: it is not in the arguments.
enum class HelpRequest : std::uint8_t { kShort, kAll };
[[nodiscard]] std::optional<HelpRequest> help_request(Arguments arguments);

/// Errors: nothing is there under that name, with how to get it if it is one of Hugging Face's.
[[nodiscard]] Result<void> check_model_exists(const std::string& model);

/// The folder of the model to load: as given, or the demo model that comes with the binary. Errors:
/// it is not there, nor is the draft model.
[[nodiscard]] Result<std::string> model_folder(const Options& options);

/// Sets the model's folder to that, and its name in the API if none is given.
[[nodiscard]] Result<void> resolve_model(Options& options);

/// An exception that ends the process is said in a sentence on standard error.
void explain_fatal_errors();

/// Prints "troupe: <message>" to standard error and returns the exit code for it.
int fail(const Error& error);

[[nodiscard]] std::vector<std::string> environment();

}  // namespace troupe::tools
