#include "runtime/config/option_set.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace troupe {
namespace {

Result<std::int64_t> parse_integer(const std::string& text) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc::result_out_of_range) return invalid_argument("does not fit in 64 bits");
  if (error != std::errc()) return invalid_argument("expected a whole number");
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
  if (stop != end && factor == 1) return invalid_argument("expected a whole number");
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

Result<bool> parse_flag(const std::string& text) {
  if (text == "true" || text == "1" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "0" || text == "no" || text == "off") return false;
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
    ASSIGN_OR_RETURN(target, parse_flag(text));
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
  option.default_text = option.get();
  return *this;
}

OptionSet::Option* OptionSet::find(std::string_view name) {
  const auto it = std::find_if(options_.begin(), options_.end(),
                               [&](const Option& o) { return o.name == name; });
  return it == options_.end() ? nullptr : &*it;
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
      return invalid_argument(
          where + ": unknown key '" + entry.section + "." + entry.key + "'" +
              (option == nullptr ? ""
                                 : ", did you mean '" + option->section + "." + entry.key + "'?"),
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

Result<void> OptionSet::read_environment(std::span<const std::string> environment,
                                         std::string_view prefix) {
  for (const std::string& variable : environment) {
    const std::size_t equals = variable.find('=');
    if (!variable.starts_with(prefix) || equals == std::string::npos) continue;
    const std::string name = variable.substr(0, equals);
    const auto matches = [&](const Option& o) { return environment_name(prefix, o.name) == name; };
    const auto option = std::find_if(options_.begin(), options_.end(), matches);
    if (option == options_.end())
      return invalid_argument("unknown environment variable '" + name + "'", name);
    RETURN_IF_ERROR(assign(*option, variable.substr(equals + 1), OptionSource::kEnvironment, name));
  }
  return {};
}

Result<std::vector<std::string>> OptionSet::read_command_line(
    std::span<const std::string> arguments) {
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      rest.insert(rest.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                  arguments.end());
      break;
    }
    const std::size_t equals = argument.find('=');
    std::string name = argument.substr(0, equals);
    const auto short_form = std::find_if(options_.begin(), options_.end(), [&](const Option& o) {
      return !o.alias.empty() && o.alias == name;
    });
    if (short_form != options_.end()) {
      name = short_form->name;
    } else if (name.starts_with("--")) {
      name.erase(0, 2);
      std::replace(name.begin(), name.end(), '_', '-');
    } else {
      rest.push_back(argument);
      continue;
    }
    std::optional<std::string> text;
    if (equals != std::string::npos) text = argument.substr(equals + 1);
    Option* option = find(name);
    if (option == nullptr && name.starts_with("no-")) {
      option = find(std::string_view(name).substr(3));
      if (option != nullptr && !option->is_flag) option = nullptr;
      if (option != nullptr && text) return invalid_argument("--" + name + " takes no value", name);
      text = "false";
    }
    if (option == nullptr) return invalid_argument("unknown option '--" + name + "'", name);
    if (!text && option->is_flag) text = "true";
    if (!text) {
      if (i + 1 == arguments.size()) return invalid_argument("--" + name + " needs a value", name);
      text = arguments[++i];
    }
    RETURN_IF_ERROR(assign(*option, *text, OptionSource::kCommandLine, "command line"));
  }
  return rest;
}

std::string OptionSet::help() const {
  std::string text;
  std::string heading;
  for (const Option& option : options_) {
    if (option.section != heading) {
      heading = option.section;
      text += "\n" + heading + " options:\n";
    }
    std::string left = "  --" + option.name + (option.alias.empty() ? "" : ", " + option.alias) +
                       (option.type.empty() ? "" : " " + option.type);
    left += left.size() < 38 ? std::string(38 - left.size(), ' ') : "\n" + std::string(38, ' ');
    std::string right = option.help;
    if (!option.choices.empty()) right += " {" + join(option.choices, "|") + "}";
    if (option.is_list)
      right += " (may be repeated)";
    else if (!option.default_text->empty())
      right += " [" + *option.default_text + "]";
    text += left + right + "\n";
  }
  return text;
}

std::string OptionSet::dump() const {
  std::string text;
  for (const Option& option : options_) {
    std::string left = option.section + "." + option.name + " = " + option.get();
    if (left.size() < 60) left += std::string(60 - left.size(), ' ');
    text += left + "  (" + std::string(to_string(option.source)) + ")\n";
  }
  return text;
}

}  // namespace troupe
