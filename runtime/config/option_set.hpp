#pragma once
// The option table: what can be set, where each value came from, and how to read it from a
// configuration file, the environment and the command line (the later wins over the earlier). A
// program binds its options to plain struct members once; --help, `troupe config` and all three
// readers come from that one list.

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
  std::vector<std::string> list;  ///< the elements, if the value is a list
  bool is_list = false;
  int line = 0;
};

/// Owns nothing but the list: targets are members of structs that outlive it. Names are unique.
class OptionSet {
 public:
  struct Option {
    std::string section;  ///< of the configuration file, and the heading in --help
    std::string name;     ///< as on the command line, without the dashes
    std::string alias;    ///< a short form of it, with its dash; empty: none
    std::string type;     ///< as shown: INT, FLOAT, TEXT, LIST, or empty for a flag
    std::string help;
    std::vector<std::string> choices;  ///< empty: anything
    std::function<Result<void>(const std::string&)> set;
    std::function<void()> clear;  ///< lists only: drop what a weaker source gave
    std::function<std::string()> get;
    OptionSource source = OptionSource::kDefault;
    bool is_flag = false;
    bool is_list = false;
    bool in_short_help = true;
    std::optional<std::string> default_text;
  };
  /// What a source says about one option, read and not yet applied.
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

  /// The option added last may also be written so on the command line: "-tp".
  OptionSet& alias(std::string text);
  /// Options added from here on belong to this section.
  OptionSet& section(std::string name);
  OptionSet& add(std::string name, bool& target, std::string help);
  /// Integers may end in k, m, g (powers of 1000) or K, M, G (of 1024). A value outside [min, max]
  /// is an error. `words` stand for a number each.
  OptionSet& add(std::string name, std::int64_t& target, std::string help,
                 std::int64_t min = INT64_MIN, std::int64_t max = INT64_MAX,
                 std::vector<std::pair<std::string, std::int64_t>> words = {});
  OptionSet& add(std::string name, double& target, std::string help, double min = -1e300,
                 double max = 1e300);
  OptionSet& add(std::string name, std::string& target, std::string help,
                 std::vector<std::string> choices = {});
  /// May be given several times; in a file as a list.
  OptionSet& add(std::string name, std::vector<std::string>& target, std::string help);

  /// Of the options so far the short help shows these alone; the long one shows all.
  OptionSet& short_help(std::span<const std::string_view> names);

  /// An unknown section or key is an error.
  [[nodiscard]] Result<void> read_file(std::span<const ConfigEntry> entries,
                                       std::string_view file_name);
  /// Takes variables `<prefix>MAX_MODEL_LEN=...` from `environment` (as environ gives them). Those
  /// that name no option are noted and ignored: whoever starts a process in a cluster does not
  /// choose all of its variables. So are the addresses that Kubernetes sets for its Services
  /// (`<prefix>PORT=tcp://...`), also where the name is an option's.
  [[nodiscard]] std::vector<Assignment> parse_environment(std::span<const std::string> environment,
                                                          std::string_view prefix);
  /// --name value, --name=value, -alias value, --flag, --no-flag. What is not an option is
  /// positional, in order; `--` ends the options. A value that looks like an option is given with
  /// '='. What is vLLM's and means nothing here is noted. Errors: unknown options, missing values.
  [[nodiscard]] Result<CommandLineArguments> parse_command_line(
      std::span<const std::string> arguments);
  /// Errors: those of the values.
  [[nodiscard]] Result<void> apply(std::span<const Assignment> assignments);

  /// What was read and has no effect, a sentence each.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

  /// The options by section, with types, defaults and choices; all, or those of the short help.
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
