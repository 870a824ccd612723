#include "runtime/structured_output/json_grammar.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace troupe {
namespace {

/// Blanks between two tokens: enough to indent 20 levels by two.
constexpr std::uint32_t kMaxBlanks = 40;
constexpr std::size_t kMaxDigits = 400;

// RFC 3339, 5321, 1123, 2673, 4291, 4122, 3986, 3987, 6901, 6570, ISO 8601. As whole texts.
constexpr std::string_view kDate =
    R"((?:(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8])))|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29))";
constexpr std::string_view kTime =
    R"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:[zZ]|[+-](?:[01]\d|2[0-3]):[0-5]\d))";
constexpr std::string_view kDuration =
    R"(P(?:\d+W|T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)|(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)(?:T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S))?))";
constexpr std::string_view kLabel = R"([A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)";
constexpr std::string_view kIpv4 =
    R"((?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
constexpr std::string_view kUuid =
    "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
/// RFC 3987's ucschar.
constexpr std::string_view kIriCharacters =
    "\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF\U00010000-\U0001FFFD\U00020000-\U0002FFFD"
    "\U00030000-\U0003FFFD\U00040000-\U0004FFFD\U00050000-\U0005FFFD\U00060000-\U0006FFFD"
    "\U00070000-\U0007FFFD\U00080000-\U0008FFFD\U00090000-\U0009FFFD\U000A0000-\U000AFFFD"
    "\U000B0000-\U000BFFFD\U000C0000-\U000CFFFD\U000D0000-\U000DFFFD\U000E1000-\U000EFFFD";
constexpr std::string_view kPointer = R"((?:/(?:[^~/]|~[01])*)*)";

std::string ipv6() {
  const std::string h = "[0-9a-fA-F]{1,4}";
  const std::string tail = "(?:" + h + ":" + h + "|" + std::string(kIpv4) + ")";
  std::string all = "(?:" + h + ":){6}" + tail + "|::(?:" + h + ":){5}" + tail;
  for (int n = 0; n < 5; ++n) {
    const std::string front = "(?:(?:" + h + ":){0," + std::to_string(n) + "}" + h + ")?::";
    const int more = 4 - n;
    all += "|" + front + (more > 0 ? "(?:" + h + ":){" + std::to_string(more) + "}" : "") + tail;
  }
  all += "|(?:(?:" + h + ":){0,5}" + h + ")?::" + h;
  all += "|(?:(?:" + h + ":){0,6}" + h + ")?::";
  return "(?:" + all + ")";
}

std::string hostname() { return "(?:" + std::string(kLabel) + "\\.){0,3}" + std::string(kLabel); }

/// A URI, or a reference to one, whose names may have these characters, too.
std::string identifier(std::string_view characters, bool absolute) {
  const std::string more(characters);
  const std::string unreserved = "A-Za-z0-9._~" + more;
  const std::string pchar = "(?:[" + unreserved + "!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})";
  const std::string query = "(?:\\?(?:" + pchar + "|[/?])*)?(?:#(?:" + pchar + "|[/?])*)?";
  const std::string authority =
      "//(?:(?:[" + unreserved + "!$&'()*+,;=:-]|%[0-9a-fA-F]{2})*@)?(?:\\[" + ipv6() + "\\]|(?:[" +
      unreserved + "!$&'()*+,;=-]|%[0-9a-fA-F]{2})*)(?::\\d*)?(?:/" + pchar + "*)*";
  const std::string rooted = "/(?:" + pchar + "+(?:/" + pchar + "*)*)?";
  const std::string uri = "[A-Za-z][A-Za-z0-9+.-]*:(?:" + authority + "|" + rooted + "|" + pchar +
                          "+(?:/" + pchar + "*)*|)";
  if (absolute) return uri + query;
  // The first part of a relative path has no colon, or it would be a scheme.
  const std::string no_colon = "(?:[" + unreserved + "!$&'()*+,;=@-]|%[0-9a-fA-F]{2})";
  return "(?:" + uri + "|" + authority + "|" + rooted + "|" + no_colon + "+(?:/" + pchar + "*)*|)" +
         query;
}

std::string uri_template() {
  const std::string literal =
      std::string("(?:[!#$&(-;=?-\\[\\]_a-z~") + std::string(kIriCharacters) + "]|%[0-9a-fA-F]{2})";
  const std::string variable = "(?:[A-Za-z0-9_]|%[0-9a-fA-F]{2})";
  const std::string spec = variable + "(?:\\.?" + variable + ")*(?:\\*|:[1-9][0-9]{0,3})?";
  return "(?:" + literal + "|\\{[+#./;?&=,!@|]?" + spec + "(?:," + spec + ")*\\})*";
}

/// The expression of a format.
std::optional<std::string> format_regex(std::string_view name) {
  if (name == "date") return std::string(kDate);
  if (name == "time") return std::string(kTime);
  if (name == "date-time") return std::string(kDate) + "[tT]" + std::string(kTime);
  if (name == "duration") return std::string(kDuration);
  if (name == "email")
    return R"([A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@)" + hostname();
  if (name == "hostname") return hostname();
  if (name == "ipv4") return std::string(kIpv4);
  if (name == "ipv6") return ipv6();
  if (name == "uuid") return std::string(kUuid);
  if (name == "uri") return identifier("", true);
  if (name == "uri-reference") return identifier("", false);
  if (name == "iri") return identifier(kIriCharacters, true);
  if (name == "iri-reference") return identifier(kIriCharacters, false);
  if (name == "uri-template") return uri_template();
  if (name == "json-pointer") return std::string(kPointer);
  if (name == "relative-json-pointer") return "(?:0|[1-9]\\d*)(?:#|" + std::string(kPointer) + ")";
  return std::nullopt;
}

}  // namespace

// ---- Decimal ---------------------------------------------------------------------------------

Decimal Decimal::parse(std::string_view json) {
  Decimal result;
  result.negative = json.starts_with('-');
  if (result.negative) json.remove_prefix(1);
  std::string digits;
  long point = -1;
  long exponent = 0;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '.') {
      point = static_cast<long>(digits.size());
    } else if (c == 'e' || c == 'E') {
      const std::string text(json.substr(i + 1));
      exponent = std::strtol(text.c_str(), nullptr, 10);
      break;
    } else {
      digits.push_back(c);
    }
  }
  if (point < 0) point = static_cast<long>(digits.size());
  constexpr auto kMax = static_cast<long>(kMaxDigits);
  point = std::clamp(point + std::clamp(exponent, -4 * kMax, 4 * kMax), -4 * kMax, 4 * kMax);
  if (point < 0) digits.insert(0, static_cast<std::size_t>(-point), '0');
  point = std::max(point, 0l);
  if (static_cast<std::size_t>(point) > digits.size())
    digits.append(static_cast<std::size_t>(point) - digits.size(), '0');
  result.whole = digits.substr(0, static_cast<std::size_t>(point));
  result.fraction = digits.substr(static_cast<std::size_t>(point));
  result.whole.erase(0, std::min(result.whole.find_first_not_of('0'), result.whole.size()));
  if (result.whole.empty()) result.whole = "0";
  while (result.fraction.ends_with('0')) result.fraction.pop_back();
  if (result.whole.size() + result.fraction.size() > kMaxDigits)
    throw GrammarRefused("json_schema: a number of more than " + std::to_string(kMaxDigits) +
                         " digits");
  if (result.is_zero()) result.negative = false;
  return result;
}

bool less(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative;
  const Decimal& x = a.negative ? b : a;
  const Decimal& y = a.negative ? a : b;
  if (x.whole.size() != y.whole.size()) return x.whole.size() < y.whole.size();
  if (x.whole != y.whole) return x.whole < y.whole;
  return x.fraction < y.fraction;
}

// ---- JsonGrammar -----------------------------------------------------------------------------

JsonGrammar::JsonGrammar(GrammarBuilder& builder, const JsonGrammarOptions& options,
                         JsonStrings strings)
    : builder_(builder), strings_(strings) {
  GrammarBuilder& b = builder_;
  if (strings_ == JsonStrings::kPlain) {
    unescaped_ = {{0, CodePointSet::kMax}};
  } else if (strings_ == JsonStrings::kWithoutLess) {
    unescaped_ = {{0x20, 0x21}, {0x23, '<' - 1}, {'<' + 1, 0x5B}, {0x5D, CodePointSet::kMax}};
  } else {
    unescaped_ = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, CodePointSet::kMax}};
  }
  if (options.whitespace_pattern) {
    whitespace_ = add_regex(b, *options.whitespace_pattern, {});
  } else if (options.any_whitespace) {
    ByteSet blank;
    blank.set(' ').set('\t');
    whitespace_ = b.sequence({b.optional(b.sequence({b.optional(b.byte('\r')), b.byte('\n')})),
                              b.repeat(b.bytes(blank), 0, kMaxBlanks)});
  } else {
    whitespace_ = b.empty();
  }
  digit_ = b.bytes(byte_range('0', '9'));
  digits_ = b.repeat(digit_, 0);
  whole_ = b.choice({b.byte('0'), b.sequence({b.bytes(byte_range('1', '9')), digits_})});

  const auto hex = [&](std::string_view digits) {
    ByteSet set;
    for (const char c : digits) set.set(static_cast<unsigned char>(c));
    return b.bytes(set);
  };
  const GrammarNodeId h = hex("0123456789abcdefABCDEF");
  ByteSet escaped;
  for (const char c : std::string_view("\"\\/bfnrt")) escaped.set(static_cast<unsigned char>(c));
  // Surrogates only in pairs: others are no text.
  const GrammarNodeId unit = b.sequence(
      {b.byte('u'), b.choice({b.sequence({hex("0123456789abcefABCEF"), h, h, h}),
                              b.sequence({hex("dD"), hex("01234567"), h, h}),
                              b.sequence({hex("dD"), hex("89abAB"), h, h, b.literal("\\u"),
                                          hex("dD"), hex("cdefCDEF"), h, h})})});
  any_character_ = b.code_points(unescaped_);
  if (strings_ != JsonStrings::kPlain)
    any_character_ =
        b.choice({any_character_, b.sequence({b.byte('\\'), b.choice({b.bytes(escaped), unit})})});
  spelled_character_ = spelled_characters({{0, CodePointSet::kMax}});
}

GrammarNodeId JsonGrammar::separator(char c) {
  GrammarNodeId& known = c == ',' ? comma_ : colon_;
  if (known == 0)
    known =
        builder_.sequence({whitespace_, builder_.byte(static_cast<unsigned char>(c)), whitespace_});
  return known;
}

GrammarNodeId JsonGrammar::quoted(GrammarNodeId content) {
  if (strings_ == JsonStrings::kPlain) return content;
  return builder_.sequence({builder_.byte('"'), content, builder_.byte('"')});
}

GrammarNodeId JsonGrammar::string(std::uint32_t min, std::uint32_t max) {
  if (min > max) return builder_.nothing();
  return quoted(builder_.repeat(any_character_, min, max));
}

GrammarNodeId JsonGrammar::spelled_characters(const CodePointSet& set) {
  std::vector<GrammarNodeId> parts{builder_.code_points(set.intersection(unescaped_))};
  if (strings_ == JsonStrings::kPlain) return parts.front();
  if (set.contains('<') && !unescaped_.contains('<')) parts.push_back(builder_.literal("\\u003c"));
  ByteSet short_escapes;
  constexpr std::string_view kNames = "\"\\bfnrt";
  constexpr std::string_view kValues = "\"\\\b\f\n\r\t";
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (set.contains(static_cast<unsigned char>(kValues[i])))
      short_escapes.set(static_cast<unsigned char>(kNames[i]));
  if (short_escapes.any())
    parts.push_back(builder_.sequence({builder_.byte('\\'), builder_.bytes(short_escapes)}));
  // The other control characters, by the first of their two digits.
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const unsigned high : {0u, 1u}) {
    ByteSet low;
    for (unsigned c = 16 * high; c < 16 * high + 16; ++c) {
      if (!set.contains(c) || kValues.find(static_cast<char>(c)) != std::string_view::npos)
        continue;
      const char digit = kHex[c % 16];
      low.set(static_cast<unsigned char>(digit));
      if (digit >= 'a') low.set(static_cast<unsigned char>(digit - 'a' + 'A'));
    }
    if (low.any())
      parts.push_back(builder_.sequence(
          {builder_.literal(high == 0 ? "\\u000" : "\\u001"), builder_.bytes(low)}));
  }
  return builder_.choice(parts);
}

GrammarNodeId JsonGrammar::string_literal(std::string_view text) {
  if (strings_ == JsonStrings::kPlain) return builder_.literal(text);
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string spelled;
  for (const char c : text) {
    constexpr std::string_view kNames = "\"\\bfnrt";
    constexpr std::string_view kValues = "\"\\\b\f\n\r\t";
    const std::size_t known = kValues.find(c);
    const auto value = static_cast<unsigned char>(c);
    if (known != std::string_view::npos) {
      spelled += {'\\', kNames[known]};
    } else if (value < 0x20 || (c == '<' && strings_ == JsonStrings::kWithoutLess)) {
      spelled += {'\\', 'u', '0', '0', kHex[value / 16], kHex[value % 16]};
    } else {
      spelled.push_back(c);
    }
  }
  return quoted(builder_.literal(spelled));
}

GrammarNodeId JsonGrammar::matching(std::string_view pattern, bool search) {
  const auto known = patterns_.find({search, std::string(pattern)});
  if (known != patterns_.end()) return known->second;
  const GrammarNodeId node =
      add_regex(builder_, pattern,
                {.dialect = RegexDialect::kEcma,
                 .search = search,
                 .characters = [this](const CodePointSet& set) {
                   if (set.ranges().size() == 1 && set.ranges()[0].first == 0 &&
                       set.ranges()[0].second == CodePointSet::kMax)
                     return spelled_character_;
                   return spelled_characters(set);
                 }});
  patterns_.emplace(std::pair(search, std::string(pattern)), node);
  return node;
}

std::optional<GrammarNodeId> JsonGrammar::format(std::string_view name) {
  const auto known = formats_.find(name);
  if (known != formats_.end()) return known->second;
  const auto pattern = format_regex(name);
  if (!pattern) return std::nullopt;
  return formats_.emplace(name, matching(*pattern, false)).first->second;
}

/// Decimals without sign that are not under the bound. Also some that JSON would not write, with
/// leading zeros.
GrammarNodeId JsonGrammar::magnitude_from(const Decimal& bound, bool exclusive) {
  GrammarBuilder& b = builder_;
  const auto n = static_cast<std::uint32_t>(bound.whole.size());
  const GrammarNodeId any_fraction = b.optional(b.sequence({b.byte('.'), digit_, digits_}));
  std::vector<GrammarNodeId> parts{
      b.sequence({b.bytes(byte_range('1', '9')), b.repeat(digit_, n), any_fraction})};
  const auto above = [&](std::string_view digits, std::size_t i) {
    return digits[i] == '9' ? b.nothing()
                            : b.bytes(byte_range(static_cast<unsigned char>(digits[i] + 1), '9'));
  };
  for (std::uint32_t i = 0; i < n; ++i)
    parts.push_back(b.sequence({b.literal(bound.whole.substr(0, i)), above(bound.whole, i),
                                b.repeat(digit_, n - 1 - i, n - 1 - i), any_fraction}));
  const std::string& f = bound.fraction;
  const std::string front = bound.whole + ".";
  for (std::size_t i = 0; i < f.size(); ++i)
    parts.push_back(b.sequence({b.literal(front + f.substr(0, i)), above(f, i), digits_}));
  const GrammarNodeId more_than_zero =
      b.sequence({digits_, b.bytes(byte_range('1', '9')), digits_});
  if (exclusive) {
    parts.push_back(b.sequence({b.literal(front + f), more_than_zero}));
  } else if (f.empty()) {
    parts.push_back(b.sequence({b.literal(bound.whole), any_fraction}));
  } else {
    parts.push_back(b.sequence({b.literal(front + f), digits_}));
  }
  return b.choice(parts);
}

/// The same for those that are not over it.
GrammarNodeId JsonGrammar::magnitude_to(const Decimal& bound, bool exclusive) {
  GrammarBuilder& b = builder_;
  const auto n = static_cast<std::uint32_t>(bound.whole.size());
  const GrammarNodeId any_fraction = b.optional(b.sequence({b.byte('.'), digit_, digits_}));
  std::vector<GrammarNodeId> parts;
  if (n > 1) parts.push_back(b.sequence({b.repeat(digit_, 1, n - 1), any_fraction}));
  const auto below = [&](std::string_view digits, std::size_t i) {
    return digits[i] == '0' ? b.nothing()
                            : b.bytes(byte_range('0', static_cast<unsigned char>(digits[i] - 1)));
  };
  for (std::uint32_t i = 0; i < n; ++i)
    parts.push_back(b.sequence({b.literal(bound.whole.substr(0, i)), below(bound.whole, i),
                                b.repeat(digit_, n - 1 - i, n - 1 - i), any_fraction}));
  const std::string& f = bound.fraction;
  const std::string front = bound.whole + ".";
  for (std::size_t i = 0; i < f.size(); ++i) {
    parts.push_back(b.sequence({b.literal(front + f.substr(0, i)), below(f, i), digits_}));
    // Shorter is smaller: the fraction ends in other digits than zeros.
    parts.push_back(b.literal(i == 0 ? bound.whole : front + f.substr(0, i)));
  }
  const GrammarNodeId zeros = b.repeat(b.byte('0'), 0);
  if (!exclusive) {
    if (f.empty()) {
      parts.push_back(b.sequence(
          {b.literal(bound.whole), b.optional(b.sequence({b.byte('.'), b.byte('0'), zeros}))}));
    } else {
      parts.push_back(b.sequence({b.literal(front + f), zeros}));
    }
  }
  return b.choice(parts);
}

GrammarNodeId JsonGrammar::bounded_magnitude(const NumberBounds& bounds, bool negative) {
  GrammarBuilder& b = builder_;
  GrammarNodeId result =
      bounds.integer ? whole_
                     : b.sequence({whole_, b.optional(b.sequence({b.byte('.'), digit_, digits_}))});
  // Of a negative number, the upper bound is the magnitude's lower one.
  const auto& from = negative ? bounds.max : bounds.min;
  const auto& to = negative ? bounds.min : bounds.max;
  if (to) {
    if (!to->value.is_zero() && to->value.negative != negative) return b.nothing();
    result = b.intersection(result, magnitude_to(to->value, to->exclusive));
  }
  const bool has_from = from && !from->value.is_zero() && from->value.negative == negative;
  const bool excludes_zero = from && from->value.is_zero() && from->exclusive;
  if (has_from) {
    result = b.intersection(result, magnitude_from(from->value, from->exclusive));
  } else if (negative || excludes_zero) {
    result = b.intersection(result, magnitude_from(Decimal{}, true));
  }
  if (bounds.multiple_of)
    result = b.intersection(result, multiples(*bounds.multiple_of, bounds.integer));
  if (bounds.not_multiples.empty()) return result;
  // Without zeros at the end of a fraction: multiples() says where the others belong.
  const GrammarNodeId fraction = b.sequence({b.byte('.'), digits_, b.bytes(byte_range('1', '9'))});
  result = b.intersection(result, b.sequence({whole_, b.optional(fraction)}));
  for (const Decimal& one : bounds.not_multiples)
    result = b.intersection(result, b.complement(multiples(one, bounds.integer)));
  return result;
}

GrammarNodeId JsonGrammar::multiples(const Decimal& divisor, bool integer) {
  GrammarBuilder& b = builder_;
  // Scaled to a whole number: of j digits behind the point, 10^(places - j) is taken for granted.
  std::string scaled = divisor.whole + divisor.fraction;
  scaled.erase(0, std::min(scaled.find_first_not_of('0'), scaled.size()));
  constexpr std::size_t kMaxScaledDigits = 8;
  if (divisor.negative || scaled.empty())
    throw GrammarRefused("json_schema: multipleOf must be greater than 0");
  if (scaled.size() > kMaxScaledDigits || divisor.fraction.size() > kMaxScaledDigits)
    throw GrammarRefused("json_schema: multipleOf with more than " +
                         std::to_string(kMaxScaledDigits) + " digits is not supported");
  const auto number = static_cast<std::uint32_t>(std::stoul(scaled));
  std::vector<GrammarNodeId> parts;
  std::uint32_t granted = 1;
  for (std::size_t j = divisor.fraction.size() + 1; j-- > 0; granted *= 10) {
    if (integer && j > 0) continue;
    const auto places = static_cast<std::uint32_t>(j);
    const GrammarNodeId form =
        j == 0 ? whole_ : b.sequence({whole_, b.byte('.'), b.repeat(digit_, places, places)});
    const std::uint32_t rest = number / std::gcd(number, granted);
    parts.push_back(rest == 1 ? form : b.intersection(form, b.multiple_of(rest)));
  }
  return b.choice(parts);
}

GrammarNodeId JsonGrammar::number(const NumberBounds& bounds) {
  const auto [known, is_new] = numbers_.try_emplace(bounds, 0);
  if (is_new) known->second = make_number(bounds);
  return known->second;
}

GrammarNodeId JsonGrammar::make_number(const NumberBounds& bounds) {
  GrammarBuilder& b = builder_;
  if (bounds.min || bounds.max || bounds.multiple_of || !bounds.not_multiples.empty())
    return b.choice({bounded_magnitude(bounds, false),
                     b.sequence({b.byte('-'), bounded_magnitude(bounds, true)})});
  const GrammarNodeId integer = b.sequence({b.optional(b.byte('-')), whole_});
  if (bounds.integer) return integer;
  ByteSet e;
  e.set('e').set('E');
  ByteSet sign;
  sign.set('+').set('-');
  return b.sequence(
      {integer, b.optional(b.sequence({b.byte('.'), digit_, digits_})),
       b.optional(b.sequence({b.bytes(e), b.optional(b.bytes(sign)), digit_, digits_}))});
}

GrammarNodeId JsonGrammar::any_object() {
  if (any_object_) return builder_.rule(*any_object_);
  any_object_ = builder_.add_rule();
  const GrammarNodeId pair = builder_.sequence({string(), separator(':'), any_value()});
  const GrammarNodeId more = builder_.repeat(builder_.sequence({separator(','), pair}), 0);
  builder_.set_body(
      *any_object_,
      builder_.sequence({builder_.byte('{'), whitespace_,
                         builder_.optional(builder_.sequence({pair, more, whitespace_})),
                         builder_.byte('}')}));
  return builder_.rule(*any_object_);
}

GrammarNodeId JsonGrammar::any_value() {
  if (any_value_) return builder_.rule(*any_value_);
  any_value_ = builder_.add_rule();
  const GrammarNodeId value = builder_.rule(*any_value_);
  const GrammarNodeId more = builder_.repeat(builder_.sequence({separator(','), value}), 0);
  const GrammarNodeId array = builder_.sequence(
      {builder_.byte('['), whitespace_,
       builder_.optional(builder_.sequence({value, more, whitespace_})), builder_.byte(']')});
  builder_.set_body(
      *any_value_,
      builder_.choice({any_object(), array, string(), number({}), builder_.literal("true"),
                       builder_.literal("false"), builder_.literal("null")}));
  return value;
}

}  // namespace troupe
