#include "runtime/chat/jinja/string_methods.hpp"

#include <algorithm>
#include <map>

#include "runtime/chat/jinja/bytes.hpp"
#include "runtime/chat/jinja/format.hpp"
#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {
namespace {

const std::string& text_of(const Value& value) {
  if (const std::string* text = value.string()) return *text;
  fail_type("must be str, not " + type_name(value));
}

std::int64_t integer_of(const std::optional<Value>& value, std::int64_t missing) {
  if (!value) return missing;
  const auto number = value->small_integer();
  if (!number) fail_type("'" + type_name(*value) + "' object cannot be interpreted as an integer");
  return *number;
}

/// The text of a value for use in `self`: escaped if `self` is Markup and the value is not.
std::string text_like(const Value& self, const Value& value, Runtime& runtime) {
  return self.is_markup() ? to_markup(value, runtime) : text_of(value);
}

/// The part [start, end) of a text in code points, as in find, count and startswith.
struct Window {
  std::string_view text;
  std::size_t first;  // code points before it
  bool is_valid;      // start is not past the end
};

Window window(const std::string& text, const std::optional<Value>& start,
              const std::optional<Value>& end, Runtime& runtime) {
  if (!start && !end) return {text, 0, true};
  runtime.budget.charge_characters(text.size());
  const auto size = static_cast<std::int64_t>(num_code_points(text));
  const auto place = [&](const std::optional<Value>& bound, std::int64_t missing) {
    const std::int64_t index = bound && bound->is_none() ? missing : integer_of(bound, missing);
    return index < 0 ? std::max<std::int64_t>(index + size, 0) : index;
  };
  const std::int64_t first = place(start, 0);
  const std::int64_t last = std::min(place(end, size), size);
  if (first > last) return {{}, 0, false};
  const std::size_t from = byte_offset(text, static_cast<std::size_t>(first));
  const std::size_t to = byte_offset(text, static_cast<std::size_t>(last));
  return {std::string_view(text).substr(from, to - from), static_cast<std::size_t>(first), true};
}

template <Side side>
Value strip_method(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "strip", {"chars"});
  const std::string& text = text_of(self);
  runtime.budget.charge_characters(text.size());
  if (!arguments[0] || arguments[0]->is_none()) return Value(strip(text, side));
  runtime.budget.charge_characters(text_of(*arguments[0]).size());
  return Value(strip(text, text_of(*arguments[0]), side));
}

template <std::string (*map)(std::string_view)>
Value map_method(const Value& self, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "case", {});
  runtime.budget.charge_characters(text_of(self).size());
  std::string mapped = map(text_of(self));
  runtime.budget.charge_text(mapped.size());
  return Value(std::move(mapped));
}

/// Whether all code points satisfy it, and there is at least one.
template <bool (*satisfies)(char32_t)>
Value all_method(const Value& self, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "is", {});
  const std::string& text = text_of(self);
  runtime.budget.charge_characters(text.size());
  for (std::size_t i = 0; i < text.size();) {
    if (!satisfies(decode_at(text, i))) return Value(false);
  }
  return Value(!text.empty());
}

bool is_alphanumeric(char32_t c) {
  return is_alpha(c) || is_decimal(c) || is_digit(c) || is_numeric(c);
}

/// islower and isupper: there are cased letters, all of them in this case.
template <bool (*right)(char32_t), bool (*wrong)(char32_t)>
Value case_method(const Value& self, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "is", {});
  const std::string& text = text_of(self);
  runtime.budget.charge_characters(text.size());
  bool has_cased = false;
  for (std::size_t i = 0; i < text.size();) {
    const char32_t c = decode_at(text, i);
    if (wrong(c) || is_title(c)) return Value(false);
    has_cased |= right(c);
  }
  return Value(has_cased);
}

Value is_title_text(const Value& self, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "istitle", {});
  const std::string& text = text_of(self);
  runtime.budget.charge_characters(text.size());
  bool has_cased = false;
  bool after_cased = false;
  for (std::size_t i = 0; i < text.size();) {
    const char32_t c = decode_at(text, i);
    const bool is_start = is_upper(c) || is_title(c);
    if (is_start ? after_cased : (is_lower(c) && !after_cased)) return Value(false);
    after_cased = is_start || is_lower(c);
    has_cased |= after_cased;
  }
  return Value(has_cased);
}

Value is_ascii_text(const Value& self, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "isascii", {});
  runtime.budget.charge_read(text_of(self).size());
  return Value(is_ascii(text_of(self)));
}

Value is_identifier(const Value& self, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "isidentifier", {});
  const std::string& text = text_of(self);
  runtime.budget.charge_characters(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const bool is_first = i == 0;
    const char32_t c = decode_at(text, i);
    if (is_first ? !is_identifier_start(c) : !is_identifier_part(c)) return Value(false);
  }
  return Value(!text.empty());
}

bool matches(std::string_view text, const std::string& part, bool at_start, Runtime& runtime) {
  runtime.budget.charge_read(std::min(text.size(), part.size()));
  return at_start ? text.starts_with(part) : text.ends_with(part);
}

template <bool at_start>
Value affix_method(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "startswith", {"prefix", "start", "end"}, 1);
  const Window part = window(text_of(self), arguments[1], arguments[2], runtime);
  if (!arguments[0]->is_tuple()) {
    if (!arguments[0]->is_string()) {
      fail_type("startswith first arg must be str or a tuple of str, not " +
                type_name(*arguments[0]));
    }
    return Value(part.is_valid && matches(part.text, text_of(*arguments[0]), at_start, runtime));
  }
  for (const Value& option : *arguments[0]->items()) {
    runtime.budget.charge();
    if (part.is_valid && matches(part.text, text_of(option), at_start, runtime)) return Value(true);
  }
  return Value(false);
}

template <bool at_start>
Value remove_affix(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "removeprefix", {"prefix"}, 1);
  std::string_view text = text_of(self);
  const std::string& part = text_of(*arguments[0]);
  if (!matches(text, part, at_start, runtime)) return self;
  runtime.budget.charge_text(text.size());
  return Value(at_start ? text.substr(part.size()) : text.substr(0, text.size() - part.size()));
}

template <bool from_right, bool fails>
Value find_part(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "find", {"sub", "start", "end"}, 1);
  const Window part = window(text_of(self), arguments[1], arguments[2], runtime);
  const std::string& wanted = text_of(*arguments[0]);
  runtime.budget.charge_read(text_of(self).size() + wanted.size());
  const std::size_t found = !part.is_valid ? std::string_view::npos
                            : from_right   ? rfind_text(part.text, wanted)
                                           : find_text(part.text, wanted);
  if (found != std::string_view::npos) {
    return Value::size(part.first + num_code_points(part.text.substr(0, found)));
  }
  if (fails) fail_value("substring not found");
  return Value(std::int64_t{-1});
}

Value count_text(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "count", {"sub", "start", "end"}, 1);
  const Window part = window(text_of(self), arguments[1], arguments[2], runtime);
  const std::string& wanted = text_of(*arguments[0]);
  runtime.budget.charge_read(text_of(self).size() + wanted.size());
  if (!part.is_valid) return Value(std::int64_t{0});
  if (wanted.empty()) return Value::size(num_code_points(part.text) + 1);
  std::int64_t count = 0;
  for (std::size_t i = find_text(part.text, wanted); i != std::string_view::npos;
       i = find_text(part.text, wanted, i + wanted.size())) {
    runtime.budget.charge();
    ++count;
  }
  return Value(count);
}

/// Bytes of `text` before its first space, or after its last one.
std::size_t first_space(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t start = i;
    if (is_space(decode_at(text, i))) return start;
  }
  return text.size();
}
std::size_t behind_last_space(std::string_view text) {
  for (std::size_t end = text.size(); end > 0;) {
    std::size_t start = end - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    std::size_t position = start;
    if (is_space(decode_at(text, position))) return end;
    end = start;
  }
  return 0;
}

std::vector<Value> split_at_spaces(std::string_view text, std::int64_t max_splits, bool from_right,
                                   Runtime& runtime) {
  runtime.budget.charge_characters(text.size());
  std::vector<Value> parts;
  while (true) {
    text = strip(text, from_right ? Side::kRight : Side::kLeft);
    if (text.empty()) break;
    runtime.budget.charge();
    if (max_splits >= 0 && static_cast<std::int64_t>(parts.size()) >= max_splits) {
      parts.emplace_back(text);
      break;
    }
    const std::size_t cut = from_right ? behind_last_space(text) : first_space(text);
    parts.emplace_back(from_right ? text.substr(cut) : text.substr(0, cut));
    text = from_right ? text.substr(0, cut) : text.substr(cut);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Value> split_at_text(std::string_view text, const std::string& separator,
                                 std::int64_t max_splits, bool from_right, Runtime& runtime) {
  if (separator.empty()) fail_value("empty separator");
  runtime.budget.charge_read(2 * text.size() + separator.size());
  std::vector<Value> parts;
  while (max_splits < 0 || static_cast<std::int64_t>(parts.size()) < max_splits) {
    runtime.budget.charge();
    const std::size_t cut = from_right ? rfind_text(text, separator) : find_text(text, separator);
    if (cut == std::string_view::npos) break;
    parts.emplace_back(from_right ? text.substr(cut + separator.size()) : text.substr(0, cut));
    text = from_right ? text.substr(0, cut) : text.substr(cut + separator.size());
  }
  parts.emplace_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

template <bool from_right>
Value split_text(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "split", {"sep", "maxsplit"});
  const std::string& text = text_of(self);
  const std::int64_t max_splits = integer_of(arguments[1], -1);
  return Value::list(
      !arguments[0] || arguments[0]->is_none()
          ? split_at_spaces(text, max_splits, from_right, runtime)
          : split_at_text(text, text_of(*arguments[0]), max_splits, from_right, runtime));
}

template <bool from_right>
Value partition_text(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "partition", {"sep"}, 1);
  const std::string& text = text_of(self);
  const std::string& separator = text_of(*arguments[0]);
  if (separator.empty()) fail_value("empty separator");
  runtime.budget.charge_text(text.size() + separator.size());
  const std::size_t cut = from_right ? rfind_text(text, separator) : find_text(text, separator);
  if (cut == std::string::npos) {
    if (from_right) return Value::tuple({Value(""), Value(""), Value(text)});
    return Value::tuple({Value(text), Value(""), Value("")});
  }
  return Value::tuple(
      {Value(text.substr(0, cut)), Value(separator), Value(text.substr(cut + separator.size()))});
}

Value split_lines(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "splitlines", {"keepends"});
  const bool keeps_ends = integer_of(arguments[0], 0) != 0;
  const std::string& text = text_of(self);
  runtime.budget.charge_characters(text.size());
  std::vector<Value> lines;
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t line_end = i;
    const char32_t c = decode_at(text, i);
    const bool is_end = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                        c == 0x2028 || c == 0x2029;
    if (!is_end) continue;
    runtime.budget.charge();
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.emplace_back(text.substr(start, (keeps_ends ? i : line_end) - start));
    start = i;
  }
  if (start < text.size()) lines.emplace_back(text.substr(start));
  return Value::list(std::move(lines));
}

Value replace_text(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "replace", {"old", "new", "count"}, 2);
  return Value(replace_all(text_of(self), text_of(*arguments[0]),
                           text_like(self, *arguments[1], runtime), integer_of(arguments[2], -1),
                           runtime));
}

Value join_text(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "join", {"iterable"}, 1);
  std::string joined;
  const std::string& separator = text_of(self);
  bool is_first = true;
  std::int64_t index = 0;
  for (const Value& item : to_vector(*arguments[0], runtime)) {
    if (!item.is_string() && !self.is_markup()) {
      fail_type("sequence item " + std::to_string(index) + ": expected str instance, " +
                type_name(item) + " found");
    }
    ++index;
    const std::string part = text_like(self, item, runtime);
    runtime.budget.charge_text(separator.size() + part.size());
    runtime.budget.check_text_size(joined.size() + separator.size() + part.size());
    if (!std::exchange(is_first, false)) joined += separator;
    joined += part;
  }
  return Value(std::move(joined));
}

enum class Padding { kLeft, kRight, kBoth };
template <Padding padding>
Value pad_text(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "ljust", {"width", "fillchar"}, 1);
  const std::string fill = arguments[1] ? text_of(*arguments[1]) : " ";
  if (num_code_points(fill) != 1) {
    fail_type("The fill character must be exactly one character long");
  }
  const std::string& text = text_of(self);
  runtime.budget.charge_read(text.size());
  const auto size = static_cast<std::int64_t>(num_code_points(text));
  const std::int64_t width = integer_of(arguments[0], 0);
  if (width <= size) return self;
  const auto missing = static_cast<std::uint64_t>(width - size);
  // Python's str.center: an odd remainder goes left only if the width is odd.
  const std::uint64_t odd = missing & static_cast<std::uint64_t>(width) & 1;
  const std::uint64_t left = padding == Padding::kLeft    ? missing
                             : padding == Padding::kRight ? 0
                                                          : missing / 2 + odd;
  runtime.budget.charge_copies(fill.size(), missing);
  runtime.budget.charge_text(text.size() + missing * fill.size());
  std::string padded;
  for (std::uint64_t i = 0; i < left; ++i) padded += fill;
  padded += text;
  for (std::uint64_t i = left; i < missing; ++i) padded += fill;
  return Value(std::move(padded));
}

Value zero_fill(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "zfill", {"width"}, 1);
  const std::string& text = text_of(self);
  runtime.budget.charge_read(text.size());
  const auto size = static_cast<std::int64_t>(num_code_points(text));
  const std::int64_t width = integer_of(arguments[0], 0);
  if (width <= size) return self;
  const auto missing = static_cast<std::size_t>(width - size);
  runtime.budget.charge_text(text.size() + missing);
  const std::size_t sign = text.starts_with('+') || text.starts_with('-') ? 1 : 0;
  return Value(text.substr(0, sign) + std::string(missing, '0') + text.substr(sign));
}

Value expand_tabs(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "expandtabs", {"tabsize"});
  const std::int64_t size = std::max<std::int64_t>(integer_of(arguments[0], 8), 0);
  std::string expanded;
  std::int64_t column = 0;
  const std::string& text = text_of(self);
  runtime.budget.charge_characters(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const char32_t c = decode_at(text, i);
    if (c == '\t') {
      const std::int64_t missing = size == 0 ? 0 : size - column % size;
      runtime.budget.check_text_size(expanded.size() + static_cast<std::size_t>(missing));
      runtime.budget.charge_read(static_cast<std::size_t>(missing));
      expanded.append(static_cast<std::size_t>(missing), ' ');
      column += missing;
    } else {
      append_utf8(expanded, c);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return Value(std::move(expanded));
}

/// Maps characters by the table; none deletes them.
Value translate(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "translate", {"table"}, 1);
  const std::string& text = text_of(self);
  const Dict* table = arguments[0]->dict();
  if (!table) fail_type("translate() needs a dict, not " + type_name(*arguments[0]));
  std::string translated;
  for (std::size_t i = 0; i < text.size();) {
    const char32_t c = decode_at(text, i);
    const Value* found = table->find(Value(static_cast<std::int64_t>(c)), runtime.budget);
    if (!found) {
      append_utf8(translated, c);
    } else if (const auto number = found->small_integer()) {
      append_utf8(translated, static_cast<char32_t>(*number));
    } else if (!found->is_none()) {
      runtime.budget.charge_text(text_of(*found).size());
      translated += text_of(*found);
    }
    runtime.budget.check_text_size(translated.size());
  }
  return Value(std::move(translated));
}

/// str.maketrans: from one dict, or from the characters of two texts and those of a third to
/// delete.
Value make_translation(const Value&, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "maketrans", {"x", "y", "z"}, 1);
  Dict table;
  if (!arguments[1]) {
    if (!arguments[0]->dict()) {
      fail_type("if you give only one argument to maketrans it must be a dict");
    }
    for (const auto& [key, value] : arguments[0]->dict()->entries()) {
      const std::string* text = key.string();
      if (text != nullptr && num_code_points(*text) != 1) {
        fail_value("string keys in translate table must be of length 1");
      }
      if (text == nullptr && !key.is_integer()) {
        fail_type("keys in translate table must be strings or integers");
      }
      std::size_t start = 0;
      table.set(text ? Value(static_cast<std::int64_t>(decode_at(*text, start))) : key, value,
                runtime.budget);
    }
    return Value::dict(std::move(table));
  }
  const std::string& from = text_of(*arguments[0]);
  const std::string& to = text_of(*arguments[1]);
  runtime.budget.charge_characters(from.size() + to.size());
  if (num_code_points(from) != num_code_points(to)) {
    fail_value("the first two maketrans arguments must have equal length");
  }
  for (std::size_t i = 0, j = 0; i < from.size();) {
    Value key(static_cast<std::int64_t>(decode_at(from, i)));
    table.set(std::move(key), Value(static_cast<std::int64_t>(decode_at(to, j))), runtime.budget);
  }
  const std::string gone = arguments[2] ? text_of(*arguments[2]) : "";
  for (std::size_t i = 0; i < gone.size();) {
    Value key(static_cast<std::int64_t>(decode_at(gone, i)));
    table.set(std::move(key), Value(), runtime.budget);
  }
  return Value::dict(std::move(table));
}

Value encode_text(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "encode", {"encoding", "errors"});
  return encode(text_of(self), arguments[0] ? text_of(*arguments[0]) : "utf-8",
                arguments[1] ? text_of(*arguments[1]) : "strict", runtime);
}

/// format() with the entries of one dict as fields.
Value format_map(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "format_map", {"mapping"}, 1);
  if (!arguments[0]->dict())
    fail_type("format_map() needs a dict, not " + type_name(*arguments[0]));
  Arguments fields;
  for (const auto& [key, value] : arguments[0]->dict()->entries()) {
    runtime.budget.charge();
    if (key.is_string()) fields.named.emplace_back(*key.string(), value);
  }
  return brace_format(self, fields, runtime);
}

}  // namespace

std::string replace_all(const std::string& text, const std::string& old_part,
                        const std::string& new_part, std::int64_t max_count, Runtime& runtime) {
  runtime.budget.charge_read(text.size() + old_part.size());
  std::string replaced;
  std::size_t position = 0;
  const auto append = [&](std::string_view part) {
    runtime.budget.charge(1 + part.size() / 16);
    runtime.budget.check_text_size(replaced.size() + part.size());
    replaced += part;
  };
  for (std::int64_t count = 0; max_count < 0 || count < max_count; ++count) {
    if (old_part.empty()) {
      // Between all characters, and at both ends.
      append(new_part);
      if (position >= text.size()) break;
      const std::size_t start = position;
      decode_at(text, position);
      append(std::string_view(text).substr(start, position - start));
      continue;
    }
    const std::size_t found = find_text(text, old_part, position);
    if (found == std::string::npos) break;
    append(std::string_view(text).substr(position, found - position));
    append(new_part);
    position = found + old_part.size();
  }
  append(std::string_view(text).substr(position));
  return replaced;
}

NativeFunction find_string_method(std::string_view name) {
  static const std::map<std::string_view, NativeFunction> kMethods = {
      {"strip", strip_method<Side::kBoth>},
      {"lstrip", strip_method<Side::kLeft>},
      {"rstrip", strip_method<Side::kRight>},
      {"upper", map_method<to_upper>},
      {"lower", map_method<to_lower>},
      {"title", map_method<to_title>},
      {"capitalize", map_method<capitalize>},
      {"swapcase", map_method<swap_case>},
      {"casefold", map_method<case_fold>},
      {"isalpha", all_method<is_alpha>},
      {"isalnum", all_method<is_alphanumeric>},
      {"isdigit", all_method<is_digit>},
      {"isdecimal", all_method<is_decimal>},
      {"isnumeric", all_method<is_numeric>},
      {"isspace", all_method<is_space>},
      {"isprintable",
       [](const Value& self, const Arguments& call, Runtime& runtime) {
         if (text_of(self).empty() && call.positional.empty()) return Value(true);
         return all_method<is_printable>(self, call, runtime);
       }},
      {"islower", case_method<is_lower, is_upper>},
      {"isupper", case_method<is_upper, is_lower>},
      {"istitle", is_title_text},
      {"isascii", is_ascii_text},
      {"isidentifier", is_identifier},
      {"startswith", affix_method<true>},
      {"endswith", affix_method<false>},
      {"removeprefix", remove_affix<true>},
      {"removesuffix", remove_affix<false>},
      {"find", find_part<false, false>},
      {"rfind", find_part<true, false>},
      {"index", find_part<false, true>},
      {"rindex", find_part<true, true>},
      {"count", count_text},
      {"split", split_text<false>},
      {"rsplit", split_text<true>},
      {"partition", partition_text<false>},
      {"rpartition", partition_text<true>},
      {"splitlines", split_lines},
      {"replace", replace_text},
      {"join", join_text},
      {"ljust", pad_text<Padding::kRight>},
      {"rjust", pad_text<Padding::kLeft>},
      {"center", pad_text<Padding::kBoth>},
      {"zfill", zero_fill},
      {"expandtabs", expand_tabs},
      {"translate", translate},
      {"encode", encode_text},
      {"maketrans", make_translation},
      {"format_map", format_map},
      {"format", brace_format}};
  const auto found = kMethods.find(name);
  return found == kMethods.end() ? nullptr : found->second;
}

}  // namespace troupe::jinja
