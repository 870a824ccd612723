// Filters over text.
#include <algorithm>
#include <array>
#include <cstdio>
#include <set>

#include "runtime/chat/jinja/filter_tables.hpp"
#include "runtime/chat/jinja/format.hpp"
#include "runtime/chat/jinja/methods.hpp"
#include "runtime/chat/jinja/string_methods.hpp"
#include "runtime/chat/jinja/unicode.hpp"
#include "runtime/chat/jinja/urlize.hpp"
#include "runtime/chat/jinja/word_wrap.hpp"

namespace troupe::jinja {
namespace {

/// Results of filters that Jinja applies to Markup directly are Markup again.
Value like(const Value& input, std::string text) {
  return input.is_markup() ? Value::markup(std::move(text)) : Value(std::move(text));
}

std::int64_t integer(const std::optional<Value>& value, std::int64_t missing) {
  if (!value) return missing;
  const auto number = value->small_integer();
  if (!number || *number > 1'000'000'000 || *number < -1'000'000'000) {
    fail_type("a filter's argument must be a small integer, not " + type_name(*value));
  }
  return *number;
}

/// As above; none also means a missing value.
std::int64_t integer_or_none(const std::optional<Value>& value, std::int64_t missing) {
  return value && value->is_none() ? missing : integer(value, missing);
}

template <std::string (*map)(std::string_view)>
Value mapped(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "filter", {});
  const std::string text = to_text(input, runtime);
  runtime.budget.charge_characters(text.size());
  std::string result = map(text);
  runtime.budget.charge_text(result.size());
  return like(input, std::move(result));
}

/// Words as the filter title splits them: at spaces, hyphens and opening brackets.
std::string title_words(std::string_view text) {
  std::string title;
  bool is_start = true;
  std::string word;
  const auto flush = [&] {
    if (word.empty()) return;
    std::size_t first = 0;
    decode_at(word, first);
    title += to_upper(std::string_view(word).substr(0, first));
    title += to_lower(std::string_view(word).substr(first));
    word.clear();
  };
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t start = i;
    const char32_t c = decode_at(text, i);
    const bool is_separator =
        is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (is_separator != is_start) flush();
    is_start = is_separator;
    word += text.substr(start, i - start);
  }
  flush();
  return title;
}

Value trim(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "trim", {"chars"});
  const std::string text = to_text(input, runtime);
  runtime.budget.charge_characters(text.size());
  if (!arguments[0] || arguments[0]->is_none()) return like(input, std::string(strip(text)));
  if (!arguments[0]->is_string()) fail_type("strip arg must be None or str");
  runtime.budget.charge_characters(arguments[0]->string()->size());
  return like(input, std::string(strip(text, *arguments[0]->string())));
}

Value replace(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "replace", {"old", "new", "count"}, 2);
  const Value& old_part = *arguments[0];
  const Value& new_part = *arguments[1];
  const bool is_markup =
      runtime.escapes && (input.is_markup() || old_part.is_markup() || new_part.is_markup());
  const auto text_of = [&](const Value& value) {
    return is_markup ? to_markup(value, runtime) : to_text(value, runtime);
  };
  std::string replaced = replace_all(text_of(input), to_text(old_part, runtime), text_of(new_part),
                                     integer_or_none(arguments[2], -1), runtime);
  return is_markup ? Value::markup(std::move(replaced)) : Value(std::move(replaced));
}

Value indent(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "indent", {"width", "first", "blank"});
  if (const Undefined* undefined = input.get_if<Undefined>()) fail_undefined(*undefined);
  if (!input.is_string()) fail_type("'" + type_name(input) + "' object cannot be indented");
  const std::string prefix = arguments[0] && arguments[0]->is_string()
                                 ? *arguments[0]->string()
                                 : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(
                                                   integer(arguments[0], 4), 0, 1'000'000)),
                                               ' ');
  const bool indents_first = arguments[1] && is_true(*arguments[1]);
  const bool indents_blank = arguments[2] && is_true(*arguments[2]);
  // A final newline counts as a line of its own, so that it is kept.
  const Value text(*input.string() + "\n");
  const Value lines = find_string_method("splitlines")(text, {}, runtime);
  std::string indented;
  bool is_first = true;
  for (const Value& line : *lines.items()) {
    const std::string& content = *line.string();
    runtime.budget.charge_text(prefix.size() + content.size());
    runtime.budget.check_text_size(indented.size() + prefix.size() + content.size());
    if (!is_first) indented += '\n';
    if (is_first ? indents_first : (indents_blank || !content.empty())) indented += prefix;
    indented += content;
    is_first = false;
  }
  return like(input, std::move(indented));
}

Value format_filter(const Value& input, const Arguments& call, Runtime& runtime) {
  if (!call.positional.empty() && !call.named.empty()) {
    fail_type("can't handle positional and keyword arguments at the same time");
  }
  const Value format = input.is_string() ? input : Value(to_text(input, runtime));
  if (call.named.empty()) return printf_format(format, Value::tuple(call.positional), runtime);
  Dict values;
  for (const auto& [name, value] : call.named) values.set(name, value);
  return printf_format(format, Value::dict(std::move(values)), runtime);
}

Value center(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "center", {"width"});
  const Value width(integer(arguments[0], 80));
  const Value text = input.is_string() ? input : Value(to_text(input, runtime));
  return like(text, *find_string_method("center")(text, {{width}, {}}, runtime).string());
}

Value escape(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "escape", {});
  if (input.is_markup()) return input;
  return Value::markup(escape_html(to_text(input, runtime), runtime.budget));
}
Value force_escape(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "forceescape", {});
  return Value::markup(escape_html(to_text(input, runtime), runtime.budget));
}
Value safe(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "safe", {});
  return Value::markup(to_text(input, runtime));
}

std::string url_quote(std::string_view text, bool is_query, Budget& budget) {
  budget.charge_characters(text.size());
  std::string quoted;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    budget.check_text_size(quoted.size());
    const bool is_plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
        std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !is_query);
    if (is_plain) {
      quoted += c;
    } else if (c == ' ' && is_query) {
      quoted += '+';
    } else {
      std::array<char, 4> buffer;
      std::snprintf(buffer.data(), buffer.size(), "%%%02X", byte);
      quoted += buffer.data();
    }
  }
  return quoted;
}

Value url_encode(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "urlencode", {});
  if (input.is_string() || !is_iterable(input, runtime) || input.is_undefined()) {
    return Value(url_quote(to_text(input, runtime), false, runtime.budget));
  }
  const Value pairs = input.dict() ? dict_view(input, DictPart::kItems) : input;
  std::string query;
  for (const Value& pair : to_vector(pairs, runtime)) {
    const std::vector<Value> parts = to_vector(pair, runtime);
    if (parts.size() != 2) fail_value("urlencode needs pairs");
    if (!query.empty()) query += '&';
    query += url_quote(to_text(parts[0], runtime), true, runtime.budget) + "=" +
             url_quote(to_text(parts[1], runtime), true, runtime.budget);
    runtime.budget.check_text_size(query.size());
  }
  return Value(std::move(query));
}

Value truncate_text(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "truncate", {"length", "killwords", "end", "leeway"});
  const std::int64_t length = integer(arguments[0], 255);
  const std::string end = arguments[2] ? to_text(*arguments[2], runtime) : "...";
  const std::int64_t leeway = integer_or_none(arguments[3], 5);
  const auto end_size = static_cast<std::int64_t>(num_code_points(end));
  if (length < end_size || leeway < 0) fail_value("truncate's length is shorter than its end");
  const std::optional<std::size_t> size = jinja::length(input, runtime.budget);
  if (!size) fail_type("object of type '" + type_name(input) + "' has no len()");
  if (static_cast<std::int64_t>(*size) <= length + leeway) return input;
  if (!input.is_string()) fail_type("'" + type_name(input) + "' object cannot be truncated");
  const std::string& text = *input.string();
  runtime.budget.charge_read(text.size());
  std::string cut = text.substr(0, byte_offset(text, static_cast<std::size_t>(length - end_size)));
  const bool kills_words = arguments[1] && is_true(*arguments[1]);
  if (!kills_words) {
    const std::size_t space = cut.rfind(' ');
    if (space != std::string::npos) cut.resize(space);
  }
  return like(input, cut + (input.is_markup() ? to_markup(Value(end), runtime) : end));
}

Value word_count(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "wordcount", {});
  const std::string text = to_text(input, runtime);
  runtime.budget.charge_characters(text.size());
  std::int64_t count = 0;
  bool in_word = false;
  for (std::size_t i = 0; i < text.size();) {
    const char32_t c = decode_at(text, i);
    count += is_word(c) && !in_word;
    in_word = is_word(c);
  }
  return Value(count);
}

Value word_wrap(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments =
      bind(call, "wordwrap", {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  if (const Undefined* undefined = input.get_if<Undefined>()) fail_undefined(*undefined);
  if (!input.is_string()) fail_type("'" + type_name(input) + "' object cannot be wrapped");
  const std::int64_t width = integer(arguments[0], 79);
  const Value lines = find_string_method("splitlines")(input, {}, runtime);
  if (width <= 0 && !input.string()->empty()) {
    fail_value("invalid width " + std::to_string(width) + " (must be > 0)");
  }
  WrapStyle style;
  style.width = static_cast<std::size_t>(std::max<std::int64_t>(width, 1));
  if (arguments[1]) style.breaks_long_words = is_true(*arguments[1]);
  if (arguments[3]) style.breaks_on_hyphens = is_true(*arguments[3]);
  std::vector<Value> wrapped;
  const Value separator = arguments[2] && !arguments[2]->is_none() ? *arguments[2] : Value("\n");
  for (const Value& line : *lines.items()) {
    std::vector<Value> parts;
    for (std::string& part : wrap_words(*line.string(), style, runtime.budget)) {
      parts.emplace_back(std::move(part));
    }
    wrapped.push_back(
        find_string_method("join")(separator, {{Value::list(std::move(parts))}, {}}, runtime));
  }
  return find_string_method("join")(separator, {{Value::list(std::move(wrapped))}, {}}, runtime);
}

Value pretty_filter(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "pprint", {});
  return Value(pretty_print(input, runtime));
}

/// {"class": "a"} as an element's attributes, by default with a leading space.
Value xml_attributes(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "xmlattr", {"autospace"});
  if (const Undefined* undefined = input.get_if<Undefined>()) fail_undefined(*undefined);
  if (!input.dict()) fail_type("'" + type_name(input) + "' object has no attribute 'items'");
  std::string attributes;
  for (const auto& [key, value] : input.dict()->entries()) {
    if (value.is_none() || value.is_undefined()) continue;
    const std::string name = to_text(key, runtime);
    runtime.budget.charge_characters(name.size());
    for (std::size_t i = 0; i < name.size();) {
      const char32_t c = decode_at(name, i);
      if (is_space(c) || c == '/' || c == '>' || c == '=') {
        fail_value("Invalid character in attribute name: " + repr(key, runtime));
      }
    }
    if (!attributes.empty()) attributes += ' ';
    attributes += escape_html(name, runtime.budget) + "=\"" +
                  (value.is_markup() ? *value.string()
                                     : escape_html(to_text(value, runtime), runtime.budget)) +
                  "\"";
    runtime.budget.check_text_size(attributes.size());
  }
  const bool has_space = !arguments[0] || is_true(*arguments[0]);
  if (has_space && !attributes.empty()) attributes.insert(0, 1, ' ');
  return runtime.escapes ? Value::markup(std::move(attributes)) : Value(std::move(attributes));
}

/// The words of `texts`, sorted and without duplicates.
std::string sorted_words(std::initializer_list<std::string> texts, Runtime& runtime) {
  std::set<std::string> words;
  for (const std::string& text : texts) {
    const Value parts = find_string_method("split")(Value(text), {}, runtime);
    for (const Value& word : *parts.items()) words.insert(*word.string());
  }
  std::string joined;
  for (const std::string& word : words) joined += (joined.empty() ? "" : " ") + word;
  return joined;
}

Value urlize_filter(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments =
      bind(call, "urlize", {"trim_url_limit", "nofollow", "target", "rel", "extra_schemes"});
  LinkStyle style;
  if (arguments[0] && !arguments[0]->is_none()) style.max_shown = integer(arguments[0], 0);
  const bool is_nofollow = arguments[1] && is_true(*arguments[1]);
  const auto attribute = [&](const char* name, const Value& value) {
    style.attributes += std::string(" ") + name + "=\"" + to_markup(value, runtime) + "\"";
  };
  std::string rel;
  if (arguments[3] && is_true(*arguments[3])) {
    if (!arguments[3]->is_string()) fail_type("urlize's rel must be a text");
    rel = *arguments[3]->string();
  }
  // Jinja's own policy for links.
  attribute("rel", Value(sorted_words({rel, is_nofollow ? "nofollow" : "", "noopener"}, runtime)));
  if (arguments[2] && is_true(*arguments[2])) attribute("target", *arguments[2]);
  if (arguments[4] && !arguments[4]->is_none()) {
    for (const Value& scheme : to_vector(*arguments[4], runtime)) {
      if (!scheme.is_string() || !is_scheme(*scheme.string())) {
        fail_value(repr(scheme, runtime) + " is not a valid URI scheme prefix.");
      }
      style.other_schemes.push_back(*scheme.string());
    }
  }
  std::string linked = urlize(to_markup(input, runtime), style, runtime.budget);
  return runtime.escapes ? Value::markup(std::move(linked)) : Value(std::move(linked));
}

std::string unescape_html(const std::string& text) {
  static constexpr std::pair<std::string_view, std::string_view> kEntities[] = {
      {"&amp;", "&"}, {"&lt;", "<"},    {"&gt;", ">"},   {"&#34;", "\""},
      {"&#39;", "'"}, {"&quot;", "\""}, {"&apos;", "'"}, {"&nbsp;", "\u00a0"}};
  std::string plain;
  for (std::size_t i = 0; i < text.size();) {
    const auto* entity = std::find_if(
        std::begin(kEntities), std::end(kEntities),
        [&](const auto& entry) { return text.compare(i, entry.first.size(), entry.first) == 0; });
    if (entity == std::end(kEntities)) {
      plain += text[i++];
    } else {
      plain += entity->second;
      i += entity->first.size();
    }
  }
  return plain;
}

Value strip_tags(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "striptags", {});
  std::string text = to_text(input, runtime);
  runtime.budget.charge_characters(2 * text.size());
  for (const auto& [open, close] : {std::pair{"<!--", "-->"}, std::pair{"<", ">"}}) {
    std::string kept;
    std::size_t position = 0;
    while (true) {
      const std::size_t start = text.find(open, position);
      const std::size_t end = start == std::string::npos ? start : text.find(close, start);
      if (end == std::string::npos) break;
      kept += text.substr(position, start - position);
      position = end + std::string_view(close).size();
    }
    text = kept + text.substr(position);
  }
  const Value words = find_string_method("split")(Value(text), {}, runtime);
  const Value joined = find_string_method("join")(Value(" "), {{words}, {}}, runtime);
  return Value(unescape_html(*joined.string()));
}

constexpr FilterEntry kFilters[] = {{"capitalize", mapped<capitalize>},
                                    {"center", center},
                                    {"e", escape},
                                    {"escape", escape},
                                    {"forceescape", force_escape},
                                    {"format", format_filter},
                                    {"indent", indent},
                                    {"lower", mapped<to_lower>},
                                    {"pprint", pretty_filter},
                                    {"replace", replace},
                                    {"safe", safe},
                                    {"striptags", strip_tags},
                                    {"title", mapped<title_words>},
                                    {"trim", trim},
                                    {"truncate", truncate_text},
                                    {"upper", mapped<to_upper>},
                                    {"urlencode", url_encode},
                                    {"urlize", urlize_filter},
                                    {"wordcount", word_count},
                                    {"wordwrap", word_wrap},
                                    {"xmlattr", xml_attributes}};

}  // namespace

std::span<const FilterEntry> text_filters() { return kFilters; }

}  // namespace troupe::jinja
