#include "runtime/config/option_set.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/base/ascii.hpp"
#include "runtime/base/check.hpp"
#include "runtime/config/suggest.hpp"
#include "runtime/config/vllm_options.hpp"

namespace troupe {
namespace {

Result<std::int64_t> parse_integer(const std::string& text) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc::result_out_of_range) return invalid_argument("does not fit in 64 bits");
  if (error != std::errc()) return invalid_argument("expected an integer");
  std::int64_t factor = 1;
  if (end - stop == 1) {
    constexpr std::string_view kDecimal = "kmg", kBinary = "KMG";
    for (std::size_t i = 0; i < kDecimal.size(); ++i) {
      if (*stop != kDecimal[i] && *stop != kBinary[i]) continue;
      const std::int64_t base = *stop == kDecimal[i] ? 1000 : 1024;
      factor = 1;
      for (std::size_t power = 0; power <= i; ++power) factor *= base;
    }
  }
  if (stop != end && factor == 1) return invalid_argument("expected an integer");
  std::int64_t product = 0;
  if (__builtin_mul_overflow(number, factor, &product))
    return invalid_argument("does not fit in 64 bits");
  return product;
}

Result<double> parse_number(const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || !std::isfinite(number))
    return invalid_argument("expected a number");
  return number;
}

Result<bool> read_flag(const std::string& text) {
  if (const auto flag = parse_flag(text)) return *flag;
  return invalid_argument("expected true or false");
}

std::string show(double number) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, number).ptr};
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) text.append(text.empty() ? "" : separator).append(part);
  return text;
}

std::string environment_name(std::string_view prefix, const std::string& option) {
  std::string name(prefix);
  for (const char c : option) {
    name.push_back(c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c));
  }
  return name;
}

/// Whether a variable has the form that Kubernetes sets in every container for each Service:
/// NAME_PORT=tcp://10.0.0.1:80, NAME_PORT_80_TCP..., NAME_SERVICE_HOST, NAME_SERVICE_PORT...
bool is_service_link(std::string_view name, std::string_view value) {
  if (name.ends_with("_SERVICE_HOST") || name.find("_SERVICE_PORT") != std::string_view::npos)
    return true;
  if (name.ends_with("_PORT") &&
      (value.starts_with("tcp://") || value.starts_with("udp://") || value.starts_with("sctp://")))
    return true;
  const std::size_t port = name.find("_PORT_");
  const std::string_view rest = name.substr(std::min(name.size(), port + 6));
  return port != std::string_view::npos && !rest.empty() && rest[0] >= '0' && rest[0] <= '9';
}

/// "-" alone means a file by convention, and -1 is a number.
bool looks_like_option(std::string_view argument) {
  if (argument.size() < 2 || argument[0] != '-') return false;
  const char next = argument[argument[1] == '.' && argument.size() > 2 ? 2 : 1];
  return next < '0' || next > '9';
}

bool is_value_behind(std::span<const std::string> arguments, std::size_t at) {
  return at + 1 < arguments.size() && arguments[at + 1] != "--" &&
         !looks_like_option(arguments[at + 1]);
}

/// Short options of other programs (llama.cpp, vLLM).
constexpr std::pair<std::string_view, std::string_view> kLetters[] = {
    {"-m", "--model (or the model's folder alone)"},
    {"-c", "--max-model-len"},
    {"-t", "--threads"},
    {"-p", "--port"},
    {"-v", "--log-level debug (the version: troupe version)"},
};
/// vLLM's short forms; the list of its options has only the long ones.
constexpr std::pair<std::string_view, std::string_view> kVllmShortForms[] = {
    {"-O", "optimization-level"},
    {"-cc", "compilation-config"},
    {"-ac", "attention-config"},
    {"-dcp", "decode-context-parallel-size"},
    {"-pcp", "prefill-context-parallel-size"},
    {"-n", "nnodes"},
    {"-r", "node-rank"},
    {"-dpn", "data-parallel-rank"},
    {"-dpr", "data-parallel-start-rank"},
    {"-dpl", "data-parallel-size-local"},
    {"-dpa", "data-parallel-address"},
    {"-dpp", "data-parallel-rpc-port"},
    {"-dpb", "data-parallel-backend"},
    {"-dph", "data-parallel-hybrid-lb"},
    {"-dpe", "data-parallel-external-lb"},
};

/// Words joined by spaces, in lines of at most `width` columns except for longer words.
std::vector<std::string> wrap(std::string_view text, std::size_t width) {
  std::vector<std::string> lines(1);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (!lines.back().empty() && lines.back().size() + 1 + end > width) lines.emplace_back();
    if (!lines.back().empty()) lines.back() += ' ';
    lines.back() += text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

std::string_view to_string(OptionSource source) noexcept {
  constexpr std::string_view kNames[] = {"default", "file", "environment", "command line"};
  return kNames[static_cast<std::size_t>(source)];
}

OptionSet& OptionSet::section(std::string name) {
  section_ = std::move(name);
  return *this;
}

OptionSet::Option& OptionSet::append(std::string name, std::string type, std::string help) {
  CHECK(find(name) == nullptr, "option added twice:", name);
  Option& option = options_.emplace_back();
  option.section = section_;
  option.name = std::move(name);
  option.type = std::move(type);
  option.help = std::move(help);
  return option;
}

OptionSet& OptionSet::add(std::string name, bool& target, std::string help) {
  Option& option = append(std::move(name), "", std::move(help));
  option.is_flag = true;
  option.set = [&target](const std::string& text) -> Result<void> {
    ASSIGN_OR_RETURN(target, read_flag(text));
    return {};
  };
  option.get = [&target] { return std::string(target ? "true" : "false"); };
  option.default_text = option.get();
  return *this;
}

OptionSet& OptionSet::add(std::string name, std::int64_t& target, std::string help,
                          std::int64_t min, std::int64_t max,
                          std::vector<std::pair<std::string, std::int64_t>> words) {
  Option& option = append(std::move(name), "INT", std::move(help));
  option.set = [&target, min, max,
                words = std::move(words)](const std::string& text) -> Result<void> {
    for (const auto& [word, number] : words) {
      if (text != word) continue;
      target = number;
      return {};
    }
    ASSIGN_OR_RETURN(const std::int64_t number, parse_integer(text));
    if (number < min)
      return invalid_argument("the smallest value allowed is " + std::to_string(min));
    if (number > max)
      return invalid_argument("the largest value allowed is " + std::to_string(max));
    target = number;
    return {};
  };
  option.get = [&target] { return std::to_string(target); };
  option.default_text = option.get();
  return *this;
}

OptionSet& OptionSet::alias(std::string text) {
  options_.back().alias = std::move(text);
  return *this;
}

OptionSet& OptionSet::variable(std::string name) {
  options_.back().variable = std::move(name);
  return *this;
}

OptionSet& OptionSet::several() {
  CHECK(options_.back().is_list, options_.back().name);
  options_.back().takes_several = true;
  return *this;
}

OptionSet& OptionSet::add(std::string name, double& target, std::string help, double min,
                          double max) {
  Option& option = append(std::move(name), "FLOAT", std::move(help));
  option.set = [&target, min, max](const std::string& text) -> Result<void> {
    ASSIGN_OR_RETURN(const double number, parse_number(text));
    if (number < min) return invalid_argument("the smallest value allowed is " + show(min));
    if (number > max) return invalid_argument("the largest value allowed is " + show(max));
    target = number;
    return {};
  };
  option.get = [&target] { return show(target); };
  option.default_text = option.get();
  return *this;
}

OptionSet& OptionSet::add(std::string name, std::string& target, std::string help,
                          std::vector<std::string> choices) {
  Option& option = append(std::move(name), "TEXT", std::move(help));
  option.choices = choices;
  option.set = [&target, choices = std::move(choices)](const std::string& text) -> Result<void> {
    if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end()) {
      return invalid_argument("expected one of " + join(choices, ", "));
    }
    target = text;
    return {};
  };
  option.get = [&target] { return target; };
  option.default_text = option.get();
  return *this;
}

OptionSet& OptionSet::add(std::string name, std::vector<std::string>& target, std::string help) {
  Option& option = append(std::move(name), "TEXT", std::move(help));
  option.is_list = true;
  option.set = [&target](const std::string& text) -> Result<void> {
    target.push_back(text);
    return {};
  };
  option.clear = [&target] { target.clear(); };
  option.get = [&target] { return "[" + join(target, ", ") + "]"; };
  option.get_list = [&target] { return target; };
  option.default_text = option.get();
  return *this;
}

OptionSet& OptionSet::short_help(std::span<const std::string_view> names) {
  for (Option& option : options_) {
    option.in_short_help = std::find(names.begin(), names.end(), option.name) != names.end();
  }
  return *this;
}

const OptionSet::Option* OptionSet::find(std::string_view name) const {
  const auto it = std::find_if(options_.begin(), options_.end(),
                               [&](const Option& o) { return o.name == name; });
  return it == options_.end() ? nullptr : &*it;
}

OptionSet::Option* OptionSet::find(std::string_view name) {
  return const_cast<Option*>(std::as_const(*this).find(name));
}

Result<void> OptionSet::assign(Option& option, const std::string& text, OptionSource source,
                               const std::string& where) {
  if (option.is_list && option.source != source) option.clear();
  option.source = source;
  if (auto set = option.set(text); !set.ok()) {
    return invalid_argument(
        where + ": " + option.name + " = '" + text + "': " + set.error().message, option.name);
  }
  return {};
}

Result<void> OptionSet::read_file(std::span<const ConfigEntry> entries,
                                  std::string_view file_name) {
  for (const ConfigEntry& entry : entries) {
    const std::string where = std::string(file_name) + ":" + std::to_string(entry.line);
    Option* option = find(entry.key);
    if (option == nullptr || option->section != entry.section) {
      const Option* meant = option != nullptr ? option : find(closest(entry.key, names()));
      if (meant != nullptr && meant->section.empty()) meant = nullptr;  // not settable in files
      return invalid_argument(
          where + ": unknown key '" + entry.section + "." + entry.key + "'" +
              (meant == nullptr ? ""
                                : ", did you mean '" + meant->section + "." + meant->name + "'?"),
          entry.key);
    }
    if (entry.is_list != option->is_list && entry.is_list) {
      return invalid_argument(where + ": " + entry.key + " takes one value, not a list", entry.key);
    }
    if (entry.is_list) {
      option->clear();
      option->source = OptionSource::kFile;
      for (const std::string& element : entry.list) RETURN_IF_ERROR(option->set(element));
    } else {
      RETURN_IF_ERROR(assign(*option, entry.value, OptionSource::kFile, where));
    }
  }
  return {};
}

std::vector<std::string> OptionSet::names() const {
  std::vector<std::string> names;
  for (const Option& option : options_) names.push_back(option.name);
  return names;
}

std::vector<OptionSet::Assignment> OptionSet::parse_environment(
    std::span<const std::string> environment, std::string_view prefix) {
  std::vector<Assignment> of_vllm, assignments;
  std::vector<std::string> links, known;
  for (const Option& option : options_) known.push_back(environment_name(prefix, option.name));
  for (const std::string& variable : environment) {
    const std::size_t equals = variable.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = variable.substr(0, equals);
    const std::string value = variable.substr(equals + 1);
    const auto named = std::ranges::find(options_, name, &Option::variable);
    if (!name.empty() && named != options_.end() && !value.empty())  // empty: as if unset
      of_vllm.push_back({&*named, value, OptionSource::kEnvironment, name});
    if (!name.starts_with(prefix)) continue;
    const auto option = std::find(known.begin(), known.end(), name);
    if (option != known.end() && !(name.ends_with("_PORT") && is_service_link(name, value))) {
      Option& target = options_[static_cast<std::size_t>(option - known.begin())];
      assignments.push_back({&target, value, OptionSource::kEnvironment, name});
    } else if (is_service_link(name, value)) {
      links.push_back(name);
    } else {
      const std::string meant = closest(name, known);
      notes_.push_back("environment variable " + name + " matches no option and is ignored" +
                       (meant.empty() ? "" : ", did you mean " + meant + "?"));
    }
  }
  if (!links.empty()) {
    notes_.push_back("environment variables that Kubernetes sets for a Service are ignored: " +
                     join(links, ", ") + " (enableServiceLinks: false disables them)");
  }
  std::erase_if(of_vllm, [&](const Assignment& each) {
    return std::ranges::find(assignments, each.option, &Assignment::option) != assignments.end();
  });
  of_vllm.insert(of_vllm.end(), assignments.begin(), assignments.end());
  return of_vllm;
}

std::string OptionSet::meant_by(const std::string& argument) const {
  for (const auto& [letter, meaning] : kLetters) {
    if (argument == letter && find(meaning.substr(2, meaning.find(' ') - 2)) != nullptr)
      return ", did you mean " + std::string(meaning) + "?";
  }
  const std::size_t start = argument.find_first_not_of('-');
  if (start == std::string::npos || (start < 2 && argument.size() < 4)) return "";
  std::string wanted = argument.substr(start);
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  std::vector<std::string> candidates;
  for (const Option& option : options_) {
    candidates.push_back(option.name);
    if (option.is_flag) candidates.push_back("no-" + option.name);
  }
  candidates.insert(candidates.end(), {"help", "version"});
  const std::string name = closest(wanted, candidates);
  if (name == "version") return ", did you mean 'troupe version'?";
  return name.empty() ? "" : ", did you mean --" + name + "?";
}

/// Handles an option that is not ours: one of vLLM's, or an unknown one. Advances `at` over its
/// values.
Result<void> OptionSet::take_foreign(std::span<const std::string> arguments, std::size_t& at,
                                     const std::string& name, std::optional<std::string> text) {
  const std::string& argument = arguments[at];
  const std::string written = argument.substr(0, argument.find('='));
  std::string long_name = name;
  for (const auto& [letters, meaning] : kVllmShortForms) {
    if (!written.starts_with(letters)) continue;
    const std::string_view rest = std::string_view(written).substr(letters.size());
    if (rest.empty() || rest[0] == '.') long_name = meaning;
    if (letters == "-O" && rest.size() == 1 && rest[0] >= '0' && rest[0] <= '9') {
      long_name = meaning;
      text = rest;
    }
  }
  // Fields of an object have options of their own: --compilation-config.mode 3.
  const VllmOption* foreign = find_vllm_option(long_name);
  if (foreign == nullptr) foreign = find_vllm_option(long_name.substr(0, long_name.find('.')));
  const bool negated = foreign == nullptr && long_name.starts_with("no-");
  if (negated) foreign = find_vllm_option(std::string_view(long_name).substr(3));
  const bool takes_several = foreign != nullptr && foreign->kind == VllmOption::Kind::kValues;
  const bool takes_value =
      takes_several || (foreign != nullptr && foreign->kind == VllmOption::Kind::kValue);
  if (negated && takes_value) foreign = nullptr;
  if (foreign == nullptr)
    return invalid_argument("unknown option '" + written + "'" + meant_by(written), name);
  const std::string reason(foreign->reason);
  if (foreign->kind == VllmOption::Kind::kRefused && !negated) {
    return invalid_argument(written + " is a vLLM option that Troupe does not support: " + reason,
                            name);
  }
  if (takes_value) {
    const bool is_one_word = text.has_value();
    if (!text && is_value_behind(arguments, at)) text = arguments[++at];
    while (takes_several && !is_one_word && is_value_behind(arguments, at)) ++at;
    if (!text) return invalid_argument(written + " needs a value", name);
    if (!is_harmless(*foreign, *text)) {
      return invalid_argument(written + " = '" + *text + "' is not supported: " + reason, name);
    }
  }
  notes_.push_back(written + " has no effect: " + reason);
  return {};
}

Result<OptionSet::CommandLineArguments> OptionSet::parse_command_line(
    std::span<const std::string> arguments) {
  CommandLineArguments result;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      result.positionals.insert(result.positionals.end(),
                                arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                arguments.end());
      break;
    }
    if (!looks_like_option(argument)) {
      result.positionals.push_back(argument);
      continue;
    }
    const std::size_t equals = argument.find('=');
    std::string name = argument.substr(0, equals);
    const auto short_form = std::find_if(options_.begin(), options_.end(), [&](const Option& o) {
      return !o.alias.empty() && o.alias == name;
    });
    const bool is_long = name.starts_with("--");
    if (short_form != options_.end()) {
      name = short_form->name;
    } else {
      name.erase(0, is_long ? 2 : 1);
      std::replace(name.begin(), name.end(), '_', '-');
    }
    std::optional<std::string> text;
    if (equals != std::string::npos) text = argument.substr(equals + 1);
    Option* option = is_long || short_form != options_.end() ? find(name) : nullptr;
    if (option == nullptr && is_long && name.starts_with("no-")) {
      option = find(std::string_view(name).substr(3));
      if (option != nullptr && !option->is_flag) option = nullptr;
      if (option != nullptr && text) return invalid_argument("--" + name + " takes no value", name);
      if (option != nullptr) text = "false";
    }
    if (option == nullptr) {
      RETURN_IF_ERROR(take_foreign(arguments, i, name, text));
      continue;
    }
    if (!text && option->is_flag) text = "true";
    const bool is_one_word = text.has_value();
    if (!text) {
      if (i + 1 == arguments.size()) return invalid_argument("--" + name + " needs a value", name);
      text = arguments[++i];
      if (looks_like_option(*text)) {
        return invalid_argument("--" + name + " needs a value, and '" + *text +
                                    "' looks like an option; if it is the value: --" + name + "=" +
                                    *text,
                                name);
      }
    }
    result.assignments.push_back({option, *text, OptionSource::kCommandLine, "command line"});
    while (option->takes_several && !is_one_word && is_value_behind(arguments, i))
      result.assignments.push_back(
          {option, arguments[++i], OptionSource::kCommandLine, "command line"});
  }
  return result;
}

Result<void> OptionSet::apply(std::span<const Assignment> assignments) {
  for (const Assignment& each : assignments)
    RETURN_IF_ERROR(assign(*each.option, each.text, each.source, each.where));
  return {};
}

std::string OptionSet::help(bool all) const {
  constexpr std::size_t kColumn = 38, kWidth = 100;
  std::string text;
  std::optional<std::string> heading;
  for (const Option& option : options_) {
    if (!all && !option.in_short_help) continue;
    if (option.section != heading) {
      heading = option.section;
      text += "\n" + (heading->empty() ? "general" : *heading) + " options:\n";
    }
    std::string left = "  --" + option.name + (option.alias.empty() ? "" : ", " + option.alias) +
                       (option.type.empty() ? "" : " " + option.type);
    left += left.size() < kColumn ? std::string(kColumn - left.size(), ' ')
                                  : "\n" + std::string(kColumn, ' ');
    std::string right = all ? option.help : option.help.substr(0, option.help.find(';'));
    if (all && !option.variable.empty())
      right += "; also the environment variable " + option.variable;
    if (!option.choices.empty()) right += " {" + join(option.choices, ", ") + "}";
    if (option.takes_several)
      right += " (one or more, may be repeated)";
    else if (option.is_list)
      right += " (may be repeated)";
    else if (!option.default_text->empty())
      right += " [" + *option.default_text + "]";
    text += left + join(wrap(right, kWidth - kColumn), "\n" + std::string(kColumn, ' ')) + "\n";
  }
  return text;
}

std::string OptionSet::dump() const {
  std::string text;
  for (const Option& option : options_) {
    std::string left =
        option.section + (option.section.empty() ? "" : ".") + option.name + " = " + option.get();
    if (left.size() < 60) left += std::string(60 - left.size(), ' ');
    text += left + "  (" + std::string(to_string(option.source)) + ")\n";
  }
  return text;
}

}  // namespace troupe
