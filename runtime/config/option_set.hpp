#pragma once
// The option table: what can be set, where each value came from, and parsers for configuration
// file, environment and command line (later ones override earlier ones). A program binds its
// options to struct members once; --help, `troupe config` and all three parsers use that list.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

enum class OptionSource : std::uint8_t { kDefault, kFile, kEnvironment, kCommandLine };
[[nodiscard]] std::string_view to_string(OptionSource source) noexcept;

/// One `section.key = value` of a configuration file, with its line for error messages.
struct ConfigEntry {
  std::string section;
  std::string key;
  std::string value;              ///< unquoted
  std::vector<std::string> list;  ///< elements, if the value is a list
  bool is_list = false;
  int line = 0;
};

/// Owns the list only: targets are members of structs that outlive it. Names are unique.
class OptionSet {
 public:
  struct Option {
    std::string section;   ///< in the configuration file, and heading in --help
    std::string name;      ///< on the command line, without dashes
    std::string alias;     ///< short form with its dash; empty: none
    std::string variable;  ///< another environment variable that sets it; empty: none
    std::string type;      ///< for display: INT, FLOAT, TEXT, LIST; empty: a flag
    std::string help;
    std::vector<std::string> choices;  ///< empty: anything
    std::function<Result<void>(const std::string&)> set;
    std::function<void()> clear;  ///< lists only: remove the values of lower-priority sources
    std::function<std::string()> get;
    std::function<std::vector<std::string>()> get_list;  ///< lists only
    OptionSource source = OptionSource::kDefault;
    bool is_flag = false;
    bool is_list = false;
    bool takes_several = false;  ///< lists only: all words up to the next option are values
    bool in_short_help = true;
    std::optional<std::string> default_text;
  };
  /// A value from one source, parsed and not yet applied.
  struct Assignment {
    Option* option;
    std::string text;
    OptionSource source;
    std::string where;  ///< for error messages
  };
  struct CommandLineArguments {
    std::vector<Assignment> assignments;
    std::vector<std::string> positionals;
  };

  /// Adds a short form to the option added last: "-tp".
  OptionSet& alias(std::string text);
  /// The list added last takes all words up to the next option: --name a b c.
  OptionSet& several();
  /// vLLM's environment variable for the option added last; `<prefix>NAME` overrides it.
  OptionSet& variable(std::string name);
  /// Sets the section of the options added from here on.
  OptionSet& section(std::string name);
  OptionSet& add(std::string name, bool& target, std::string help);
  /// Integers may end in k, m, g (powers of 1000) or K, M, G (of 1024). Values outside [min, max]
  /// are errors. `words` are names for particular values.
  OptionSet& add(std::string name, std::int64_t& target, std::string help,
                 std::int64_t min = INT64_MIN, std::int64_t max = INT64_MAX,
                 std::vector<std::pair<std::string, std::int64_t>> words = {});
  OptionSet& add(std::string name, double& target, std::string help, double min = -1e300,
                 double max = 1e300);
  OptionSet& add(std::string name, std::string& target, std::string help,
                 std::vector<std::string> choices = {});
  /// May be repeated; in a file, a list.
  OptionSet& add(std::string name, std::vector<std::string>& target, std::string help);

  /// Limits the short help to these of the options so far; the long help shows all.
  OptionSet& short_help(std::span<const std::string_view> names);

  /// Unknown sections and keys are errors.
  [[nodiscard]] Result<void> read_file(std::span<const ConfigEntry> entries,
                                       std::string_view file_name);
  /// Takes variables `<prefix>MAX_MODEL_LEN=...` from `environment` (as environ gives them), and
  /// those that options have of vLLM's.
  /// Unknown ones are noted and ignored, since in a cluster some variables are set by others. So
  /// are the addresses that Kubernetes sets for its Services (`<prefix>PORT=tcp://...`), even where
  /// the name is an option's.
  [[nodiscard]] std::vector<Assignment> parse_environment(std::span<const std::string> environment,
                                                          std::string_view prefix);
  /// Parses --name value, --name=value, -alias value, --flag, --no-flag; and --name value value for
  /// lists that take several. Other arguments are
  /// positional, in order; `--` ends the options. A value that looks like an option needs '='. vLLM
  /// options without meaning here are noted. Errors: unknown options, missing values.
  [[nodiscard]] Result<CommandLineArguments> parse_command_line(
      std::span<const std::string> arguments);
  /// Errors: invalid values.
  [[nodiscard]] Result<void> apply(std::span<const Assignment> assignments);

  /// Notes on input without effect, a sentence each.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

  /// The options by section, with types, defaults and choices; all, or the short help.
  [[nodiscard]] std::string help(bool all = true) const;
  /// One line per option: `section.name = value  (source)`.
  [[nodiscard]] std::string dump() const;
  [[nodiscard]] const std::vector<Option>& options() const noexcept { return options_; }

 private:
  Option& append(std::string name, std::string type, std::string help);
  [[nodiscard]] const Option* find(std::string_view name) const;
  [[nodiscard]] Option* find(std::string_view name);
  [[nodiscard]] std::vector<std::string> names() const;
  Result<void> assign(Option& option, const std::string& text, OptionSource source,
                      const std::string& where);
  [[nodiscard]] std::string meant_by(const std::string& argument) const;
  Result<void> take_foreign(std::span<const std::string> arguments, std::size_t& at,
                            const std::string& name, std::optional<std::string> text);

  std::vector<Option> options_;
  std::vector<std::string> notes_;
  std::string section_;
};

}  // namespace troupe
