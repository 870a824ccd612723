#include "runtime/chat/jinja/format.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {
namespace {

constexpr std::int64_t kMaxWidth = 1'000'000;

/// The specification of one field, common to both kinds of formatting.
struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =, 0: by type
  char sign = '-';
  bool is_alternate = false;
  bool has_zero = false;
  char grouping = 0;  // , or _
  std::int64_t width = 0;
  std::int64_t precision = -1;
  char type = 0;
};

std::int64_t read_number(std::string_view text, std::size_t& position) {
  std::int64_t number = 0;
  while (position < text.size() && text[position] >= '0' && text[position] <= '9') {
    number = number * 10 + (text[position++] - '0');
    if (number > kMaxWidth) fail_limit("a width or precision in a format is too large");
  }
  return number;
}

std::string pad(const std::string& sign, const std::string& body, const Spec& spec,
                char default_align, Runtime& runtime) {
  runtime.budget.charge_text(body.size());
  const auto size = static_cast<std::int64_t>(num_code_points(sign) + num_code_points(body));
  if (size >= spec.width) return sign + body;
  const std::int64_t missing = spec.width - size;
  runtime.budget.charge_text(static_cast<std::size_t>(missing) * spec.fill.size());
  const auto fill = [&](std::int64_t count) {
    std::string text;
    for (std::int64_t i = 0; i < count; ++i) text += spec.fill;
    return text;
  };
  switch (spec.align ? spec.align : default_align) {
    case '<':
      return sign + body + fill(missing);
    case '^':
      return fill(missing / 2) + sign + body + fill(missing - missing / 2);
    case '=':
      return sign + fill(missing) + body;
    default:
      return fill(missing) + sign + body;
  }
}

std::string group_digits(const std::string& digits, char separator, std::size_t group) {
  const std::size_t end =
      std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  std::string grouped;
  for (std::size_t i = 0; i < end; ++i) {
    if (i > 0 && (end - i) % group == 0) grouped += separator;
    grouped += digits[i];
  }
  return grouped + digits.substr(end);
}

std::string format_float(double number, const Spec& spec, char type, int default_precision) {
  std::string format = spec.is_alternate ? "%#.*" : "%.*";
  format += type;
  const auto precision = static_cast<int>(
      spec.precision < 0 ? default_precision : std::min<std::int64_t>(spec.precision, 10000));
  std::array<char, 512> buffer;
  const int size = std::snprintf(buffer.data(), buffer.size(), format.c_str(), precision, number);
  if (size < static_cast<int>(buffer.size())) return buffer.data();
  std::string text(static_cast<std::size_t>(size) + 1, '\0');
  std::snprintf(text.data(), text.size(), format.c_str(), precision, number);
  text.pop_back();
  return text;
}

/// Splits a number's text into its digits and its sign.
std::pair<std::string, std::string> split_sign(std::string text, char sign) {
  if (text.starts_with('-')) return {"-", text.substr(1)};
  if (sign == '+' || sign == ' ') return {std::string(1, sign), std::move(text)};
  return {"", std::move(text)};
}

std::string format_number(const Value& value, const Spec& spec, Runtime& runtime) {
  runtime.budget.charge(cost_of_digits(value));
  // printf's cost is quadratic in the digits, up to some hundred of them.
  runtime.budget.charge(
      static_cast<std::uint64_t>(std::clamp<std::int64_t>(spec.precision, 0, 10000)));
  std::string digits;
  std::string prefix;
  char type = spec.type;
  if (type == 0 && value.is_integer()) type = 'd';
  std::size_t group = 3;
  if (std::string_view("dxXobn").find(type) != std::string_view::npos && type != 0) {
    if (!value.is_integer()) {
      fail_value("Unknown format code '" + std::string(1, type) + "' for object of type '" +
                 type_name(value) + "'");
    }
    if (spec.precision >= 0) fail_value("Precision not allowed in integer format specifier");
    const int base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    digits = integer_digits(value, base);
    if (base != 10) group = 4;
    if (spec.is_alternate && base != 10) prefix = std::string("0") + type;
    if (type == 'X') digits = to_upper(digits);
  } else if (type == 'c') {
    std::string character;
    append_utf8(character, static_cast<char32_t>(value.small_integer().value_or(0xFFFD)));
    return pad("", character, spec, '<', runtime);
  } else {
    const double number = to_double(value);
    if (type == 0) {
      digits = spec.precision < 0 ? float_repr(number) : format_float(number, spec, 'g', 6);
      if (spec.precision >= 0 && digits.find_first_of(".en") == std::string::npos) digits += ".0";
    } else if (type == '%') {
      digits = format_float(number * 100, spec, 'f', 6) + "%";
    } else if (std::string_view("eEfFgG").find(type) != std::string_view::npos) {
      digits = format_float(number, spec, type, 6);
    } else {
      fail_value("Unknown format code '" + std::string(1, type) + "' for object of type '" +
                 type_name(value) + "'");
    }
  }
  auto [sign, body] = split_sign(std::move(digits), spec.sign);
  if (spec.grouping) body = group_digits(body, spec.grouping, group);
  Spec padding = spec;
  if (spec.has_zero && !spec.align) {
    padding.align = '=';
    padding.fill = "0";
  }
  return pad(sign + prefix, body, padding, '>', runtime);
}

// ---- "%s" % values ------------------------------------------------------------------------------

class PrintfFormatter {
 public:
  PrintfFormatter(std::string_view format, const Value& values, bool is_markup, Runtime& runtime)
      : format_(format), values_(values), is_markup_(is_markup), runtime_(runtime) {}

  std::string run() {
    std::string out;
    runtime_.budget.charge_characters(format_.size());
    while (position_ < format_.size()) {
      runtime_.budget.charge();
      const std::size_t percent = std::min(format_.find('%', position_), format_.size());
      out += format_.substr(position_, percent - position_);
      position_ = percent + 1;
      if (percent < format_.size()) out += field();
      runtime_.budget.check_text_size(out.size());
    }
    runtime_.budget.charge_text(out.size());
    // A value with items other than a tuple is a mapping, which may stay unused.
    const bool is_plain = values_.is_number() || values_.is_string() || values_.is_none();
    const std::size_t num_values = values_.is_tuple() ? values_.items()->size() : is_plain ? 1 : 0;
    if (!is_keyed_ && next_ < num_values) {
      fail_type("not all arguments converted during string formatting");
    }
    return out;
  }

 private:
  [[nodiscard]] char current() const {
    if (position_ >= format_.size()) fail_value("incomplete format");
    return format_[position_];
  }

  Value take() {
    if (keyed_) return *std::exchange(keyed_, std::nullopt);
    if (values_.is_tuple()) {
      if (next_ >= values_.items()->size()) fail_type("not enough arguments for format string");
      return (*values_.items())[next_++];
    }
    if (next_++ > 0) fail_type("not enough arguments for format string");
    return values_;
  }

  std::int64_t width_or_star() {
    if (current() != '*') return read_number(format_, position_);
    ++position_;
    const auto number = take().small_integer();
    if (!number || *number > kMaxWidth || *number < -kMaxWidth) fail_type("* wants int");
    return *number;
  }

  std::string field() {
    if (current() == '(') {
      const std::size_t end = format_.find(')', position_);
      if (end == std::string_view::npos) fail_value("incomplete format key");
      if (!values_.dict()) fail_type("format requires a mapping");
      const std::string key(format_.substr(position_ + 1, end - position_ - 1));
      runtime_.budget.charge_read(key.size());
      const Value* found = values_.dict()->find(key);
      if (!found) fail_value("'" + key + "'");
      keyed_ = *found;
      is_keyed_ = true;
      position_ = end + 1;
    }
    Spec spec;
    for (; std::string_view("-+ #0").find(current()) != std::string_view::npos; ++position_) {
      const char flag = current();
      if (flag == '-') spec.align = '<';
      if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
      if (flag == '#') spec.is_alternate = true;
      if (flag == '0') spec.has_zero = true;
    }
    spec.width = width_or_star();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (current() == '.') {
      ++position_;
      spec.precision = std::max<std::int64_t>(width_or_star(), 0);
    }
    while (std::string_view("hlL").find(current()) != std::string_view::npos) ++position_;
    spec.type = current();
    ++position_;
    return spec.type == '%' ? "%" : convert(spec);
  }

  std::string convert(Spec spec) {
    const Value value = take();
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
      std::string text = spec.type == 's' ? to_text(value, runtime_) : repr(value, runtime_);
      if (is_markup_ && !value.is_markup()) text = escape_html(text, runtime_.budget);
      if (spec.precision >= 0) {
        text.resize(byte_offset(text, static_cast<std::size_t>(spec.precision)));
      }
      spec.has_zero = false;
      return pad("", text, spec, '>', runtime_);
    }
    if (spec.type == 'c') {
      if (value.is_string()) return pad("", *value.string(), spec, '>', runtime_);
      spec.align = spec.align ? spec.align : '>';
      if (!value.is_integer()) fail_type("%c requires int or char");
      return format_number(value, spec, runtime_);
    }
    if (std::string_view("diuxXoeEfFgG").find(spec.type) == std::string_view::npos) {
      fail_value("unsupported format character '" + std::string(1, spec.type) + "'");
    }
    if (const Undefined* undefined = value.get_if<Undefined>()) fail_undefined(*undefined);
    if (!value.is_number()) {
      fail_type("%" + std::string(1, spec.type) + " format: a real number is required, not " +
                type_name(value));
    }
    if (spec.align == '<') spec.has_zero = false;
    if (std::string_view("diu").find(spec.type) != std::string_view::npos) {
      spec.type = 'd';
      const double* real = value.get_if<double>();
      return integer(real ? truncate(*real) : value, spec);
    }
    if (std::string_view("xXo").find(spec.type) != std::string_view::npos) {
      return integer(value, spec);
    }
    return format_number(value, spec, runtime_);
  }

  /// With a precision, integers have at least that many digits.
  std::string integer(const Value& value, const Spec& spec) {
    if (spec.precision < 0) return format_number(value, spec, runtime_);
    Spec plain = spec;
    plain.precision = -1;
    plain.width = 0;
    auto [sign, digits] = split_sign(format_number(value, plain, runtime_), '-');
    const auto missing = spec.precision - static_cast<std::int64_t>(digits.size());
    if (missing > 0) {
      runtime_.budget.charge_text(static_cast<std::size_t>(missing));
      digits.insert(0, static_cast<std::size_t>(missing), '0');
    }
    return pad(sign, digits, spec, '>', runtime_);
  }

  std::string_view format_;
  const Value& values_;
  bool is_markup_;
  Runtime& runtime_;
  std::size_t position_ = 0;
  std::size_t next_ = 0;
  std::optional<Value> keyed_;
  bool is_keyed_ = false;
};

// ---- "{}".format(values) ------------------------------------------------------------------------

class BraceFormatter {
 public:
  BraceFormatter(const Arguments& arguments, bool is_markup, Runtime& runtime)
      : arguments_(arguments), is_markup_(is_markup), runtime_(runtime) {}

  std::string run(std::string_view format, int level) {
    if (level > 2) fail_value("Max string recursion exceeded");
    runtime_.budget.charge_characters(format.size());
    std::string out;
    for (std::size_t i = 0; i < format.size(); ++i) {
      const char c = format[i];
      const bool is_doubled = i + 1 < format.size() && format[i + 1] == c;
      if (c != '{' && c != '}') {
        out += c;
      } else if (is_doubled) {
        out += c;
        ++i;
      } else if (c == '}') {
        fail_value("Single '}' encountered in format string");
      } else {
        const std::size_t end = field_end(format, i + 1);
        out += field(format.substr(i + 1, end - i - 1), level);
        i = end;
      }
      runtime_.budget.check_text_size(out.size());
    }
    runtime_.budget.charge_text(out.size());
    return out;
  }

 private:
  static std::size_t field_end(std::string_view format, std::size_t from) {
    int open = 1;
    for (std::size_t i = from; i < format.size(); ++i) {
      open += format[i] == '{' ? 1 : format[i] == '}' ? -1 : 0;
      if (open == 0) return i;
    }
    fail_value("expected '}' before end of string");
  }

  /// name!conversion:spec
  std::string field(std::string_view text, int level) {
    std::size_t name_end = 0;
    for (int open = 0; name_end < text.size(); ++name_end) {
      const char c = text[name_end];
      open += c == '[' ? 1 : c == ']' ? -1 : 0;
      if (open <= 0 && (c == '!' || c == ':')) break;
    }
    Value value = lookup(text.substr(0, name_end));
    std::string_view rest = text.substr(name_end);
    if (rest.starts_with('!')) {
      const char conversion = rest.size() > 1 ? rest[1] : ' ';
      if (conversion == 's') {
        value = Value(to_text(value, runtime_));
      } else if (conversion == 'r' || conversion == 'a') {
        value = Value(repr(value, runtime_));
      } else {
        fail_value("Unknown conversion specifier");
      }
      rest.remove_prefix(2);
      if (!rest.empty() && rest[0] != ':') fail_value("expected ':' after conversion specifier");
    }
    if (rest.starts_with(':')) rest.remove_prefix(1);
    const std::string formatted = format_value(value, run(rest, level + 1));
    return is_markup_ && !value.is_markup() ? escape_html(formatted, runtime_.budget) : formatted;
  }

  /// first.attribute[item]...
  Value lookup(std::string_view name) {
    runtime_.budget.charge_read(name.size());
    runtime_.budget.charge(arguments_.named.size() / 4);
    std::size_t end = std::min(name.find_first_of(".["), name.size());
    const std::string first(name.substr(0, end));
    Value value;
    const bool is_number = !first.empty() && first.size() < 9 &&
                           first.find_first_not_of("0123456789") == std::string::npos;
    if (first.empty() || is_number) {
      const std::size_t index =
          first.empty() ? next_++ : static_cast<std::size_t>(std::stoul(first));
      if (index >= arguments_.positional.size()) {
        fail_value("Replacement index " + std::to_string(index) +
                   " out of range for positional args tuple");
      }
      value = arguments_.positional[index];
    } else if (const Value* named = arguments_.find(first)) {
      value = *named;
    } else {
      fail_value("'" + first + "'");
    }
    while (end < name.size()) {
      runtime_.budget.charge();
      if (name[end] == '.') {
        const std::size_t stop = std::min(name.find_first_of(".[", end + 1), name.size());
        value = get_attribute(value, name.substr(end + 1, stop - end - 1), runtime_);
        end = stop;
      } else if (name[end] == '[') {
        const std::size_t stop = name.find(']', end);
        if (stop == std::string_view::npos) fail_value("Missing ']' in format string");
        const std::string key(name.substr(end + 1, stop - end - 1));
        runtime_.budget.charge(cost_of_digits(key.size()));
        const std::optional<Value> index = key.find_first_not_of("0123456789") == std::string::npos
                                               ? parse_integer(key)
                                               : std::nullopt;
        value = get_item(value, index.value_or(Value(key)), runtime_);
        end = stop + 1;
      } else {
        fail_value("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  std::string format_value(const Value& value, const std::string& text) {
    if (text.empty()) return to_text(value, runtime_);
    const Spec spec = parse_spec(text);
    const bool is_flag = value.get_if<bool>() != nullptr;
    if (value.is_number() && !(is_flag && spec.type == 0)) {
      return format_number(value, spec, runtime_);
    }
    if (!value.is_string() && !is_flag) {
      fail_type("unsupported format string passed to " + type_name(value) + ".__format__");
    }
    if (spec.type != 0 && spec.type != 's') {
      fail_value("Unknown format code '" + std::string(1, spec.type) +
                 "' for object of type 'str'");
    }
    if (is_flag) return pad("", is_true(value) ? "1" : "0", spec, '>', runtime_);
    runtime_.budget.charge_text(value.string()->size());
    std::string body = *value.string();
    if (spec.precision >= 0) {
      body.resize(byte_offset(body, static_cast<std::size_t>(spec.precision)));
    }
    Spec padding = spec;
    if (spec.has_zero && !spec.align) padding.fill = "0";
    return pad("", body, padding, '<', runtime_);
  }

  static Spec parse_spec(std::string_view text) {
    Spec spec;
    std::size_t i = 0;
    const auto is_align = [&](std::size_t at) {
      return at < text.size() && std::string_view("<>^=").find(text[at]) != std::string_view::npos;
    };
    std::size_t second = 0;
    decode_at(text, second);
    if (is_align(second)) {
      spec.fill = std::string(text.substr(0, second));
      spec.align = text[second];
      i = second + 1;
    } else if (is_align(0)) {
      spec.align = text[0];
      i = 1;
    }
    const auto at = [&](char c) { return i < text.size() && text[i] == c; };
    if (at('+') || at('-') || at(' ')) spec.sign = text[i++];
    if (at('#')) {
      spec.is_alternate = true;
      ++i;
    }
    if (at('0')) {
      spec.has_zero = true;
      ++i;
    }
    spec.width = read_number(text, i);
    if (at(',') || at('_')) spec.grouping = text[i++];
    if (at('.')) {
      const std::size_t start = ++i;
      spec.precision = read_number(text, i);
      if (i == start) fail_value("Format specifier missing precision");
    }
    if (i < text.size()) spec.type = text[i++];
    if (i != text.size()) fail_value("Invalid format specifier");
    return spec;
  }

  const Arguments& arguments_;
  bool is_markup_;
  Runtime& runtime_;
  std::size_t next_ = 0;
};

}  // namespace

Value printf_format(const Value& format, const Value& values, Runtime& runtime) {
  std::string text = PrintfFormatter(*format.string(), values, format.is_markup(), runtime).run();
  return format.is_markup() ? Value::markup(std::move(text)) : Value(std::move(text));
}

Value brace_format(const Value& format, const Arguments& arguments, Runtime& runtime) {
  return Value(BraceFormatter(arguments, format.is_markup(), runtime).run(*format.string(), 0));
}

}  // namespace troupe::jinja
