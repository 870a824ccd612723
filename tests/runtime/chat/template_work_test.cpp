// What a template makes the server do is charged: steps are spent in proportion to the work,
// whatever the operation and however its operands were chosen.
#include <ctime>

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "runtime/base/keyed_hash.hpp"
#include "runtime/chat/chat_messages.hpp"
#include "runtime/chat/chat_template.hpp"
#include "runtime/chat/jinja/hash_index.hpp"
#include "tests/support/sanitized.hpp"

namespace troupe {
namespace {

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Operands and steps shrink together, so that their proportion stays.
constexpr std::size_t kScale = testing::kSanitized ? 8 : 1;
constexpr std::size_t kTextBytes = 200'000 / kScale;
constexpr int kListSize = 20'000 / static_cast<int>(kScale);

/// Variables that make operations dear: long texts without and with parts that nearly occur, rows,
/// dicts.
std::string hostile_variables() {
  const std::string text(kTextBytes, 'a');
  std::string list = "[0";
  std::string dict = "{\"k\":0";
  for (int i = 1; i < kListSize; ++i) {
    list += "," + std::to_string(i);
    dict += ",\"key" + std::to_string(i) + "\":" + std::to_string(i);
  }
  std::string spaced;
  std::string wide;
  for (std::size_t i = 0; i < kTextBytes / 4; ++i) {
    spaced += "a ";
    wide += "\u00e9 ";
  }
  const auto field = [](const std::string& name, const std::string& value) {
    return ",\"" + name + "\":" + value;
  };
  const auto quoted = [](const std::string& value) { return "\"" + value + "\""; };
  return "{\"one\":1" + field("s", quoted(text)) + field("same", quoted(text)) +
         field("half", quoted(text.substr(0, kTextBytes / 2) + "b")) +
         field("tail", quoted("b" + text.substr(0, kTextBytes / 2))) +
         field("spaced", quoted(spaced)) + field("wide", quoted(wide)) +
         field("brackets",
               quoted(std::string(kTextBytes / 2, '(') + std::string(kTextBytes / 2, ')'))) +
         field("digits", quoted(std::string(4000, '9'))) + field("list", list + "]") +
         field("list2", list + "]") + field("d", dict + "}") + field("d2", dict + "}") + "}";
}

const char* const kOperations[] = {
    // comparisons and operators
    "s == same", "s != same", "s < same", "s in [same]", "half in s", "tail in s", "s is eq same",
    "s is sameas same", "list == list2", "list < list2", "d == d2", "5 in list", "-1 in list",
    "list in [list2]", "s ~ s", "s + s", "s * 2", "list + list", "list * 2", "number + number",
    "number * number", "number // 7", "number // digits|int", "number % 7", "number / 7",
    "number == number", "number < number", "2 ** 16000", "3 ** 10000", "-number", "number ** 2",
    "'%d' % number", "'%x' % number", "'%500000d' % 1", "'%.500000d' % 1", "'%.10000f' % 1.5",
    "'%s' % s", "'%r' % s", "s[5]", "s[::-1]", "wide[::-1]", "s[:-1]", "list[::2]", "list[1:]",
    "{s: 1}", "{s: 1}[same]", "d[s]", "d.k", "d['k']", "{(1, s): 2}", "[s][0]", "not s",
    "number is odd", "number is divisibleby 3", "s is lower", "wide is upper", "s is in [same]",
    // filters
    "s | length", "wide | count", "s | upper", "wide | lower", "wide | capitalize", "wide | title",
    "s | trim", "s | trim('a')", "spaced | trim(s)", "s | replace('a', 'b')", "s | replace('', '')",
    "s | replace(tail, '')", "s | indent", "s | center(300000)", "s | e", "s | forceescape",
    "s | urlencode", "s | striptags", "s | truncate(9)", "s | wordcount", "spaced | wordcount",
    "s | wordwrap(3)", "spaced | wordwrap(3)", "s | pprint", "list | pprint", "s | string",
    "number | string", "number | abs", "number | round(-5)", "digits | int", "digits | float",
    "s | int", "s | float", "digits | int(0, 36)", "s | list", "s | first", "s | last",
    "s | reverse", "list | reverse | list", "list | sort", "list | sort(reverse=true)",
    "list | unique | list", "d | dictsort", "d | items | list", "list | sum", "list | max",
    "list | min", "list | join", "list | join(s)", "s | join", "list | batch(2) | list",
    "list | slice(2) | list", "list | map('string') | list", "list | select('odd') | list",
    "list | reject | list", "list | groupby('x')", "list | tojson", "s | tojson",
    "wide | tojson(ensure_ascii=true)", "d | tojson(sort_keys=true, indent=1000)",
    "list | tojson(separators=(s, s))", "d | xmlattr", "list | random", "list | first",
    "list | last", "d | list", "d | length", "s | attr(same)", "digits | filesizeformat",
    "s | format(1)", "list | map(attribute=s) | list", "s | batch(9) | list",
    "list | map('string') | map('length') | sum", "list | string",
    // methods
    "s.strip()", "s.strip('a')", "spaced.rstrip(s)", "s.upper()", "wide.title()",
    "wide.capitalize()", "wide.swapcase()", "wide.casefold()", "s.isalpha()", "wide.isalnum()",
    "wide.islower()", "wide.istitle()", "s.isascii()", "s.isidentifier()", "s.isprintable()",
    "s.isdigit()", "s.startswith(same)", "s.startswith((half, half, half, same))",
    "s.endswith(same)", "s.startswith('a', 5)", "s.removeprefix(half)", "s.removesuffix(tail)",
    "s.find(half)", "s.find(tail)", "s.rfind(tail)", "s.rfind(half)", "s.index('a')",
    "s.rindex('a')", "s.count('a')", "s.count(half)", "s.count('')", "s.split('a')",
    "s.rsplit('a')", "s.split()", "spaced.split()", "spaced.rsplit()", "spaced.rsplit(none, 3)",
    "s.split(half)", "s.rsplit(tail)", "s.partition(half)", "s.rpartition(tail)", "s.splitlines()",
    "s.replace('a', 'bb')", "s.replace(half, '')", "s.join(spaced)", "''.join(spaced)",
    "s.ljust(300000)", "s.rjust(300000, 'x')", "s.center(300000)", "s.zfill(300000)",
    "s.expandtabs()", "s.translate({97: 98})", "s.format()", "'{}'.format(s)",
    "'{:>300000}'.format(1)", "'{:,}'.format(number)", "'{:b}'.format(number)",
    "'{:_x}'.format(number)", "'{!r}'.format(s)", "'{a}'.format(**d)", "'{:.9999f}'.format(1.5)",
    "'{a}'.format_map(d)", "list.index(19999)", "list.count(5)", "d.get(s)", "d.items() | list",
    "d.copy()", "{}.fromkeys(list)", "number.bit_length()", "d.values() | list",
    // functions and calls
    "range(99999) | list", "range(99999) | length", "dict(d)", "namespace(d)", "namespace(**d)",
    "dict(**d)", "cycler(*list)", "strftime_now(s)", "m(*list)", "m(**d)", "joiner(s)()", "m(1, 2)",
    "macro_chain(1)",
    // links, bytes, blocks
    "s | urlize", "spaced | urlize", "wide | urlize(3, rel=s)", "(brackets | safe) | urlize",
    "spaced | urlize(extra_schemes=['ftp:'])", "s.encode()", "wide.encode('latin-1')",
    "wide.encode('ascii', 'backslashreplace')", "s.encode().decode()", "s.encode().hex()",
    "s.encode()[::-1]", "0 in s.encode()", "s.encode() | string", "s.encode() == same.encode()",
    "{s.encode(): 1}", "s.encode('x' ~ s)", "s.maketrans(s, same)", "s.maketrans(d)",
    "range(99999).index(99998)", "range(99999)[::-1]", "range(9) == range(8)", "self.text()",
    "(s | safe) ~ s", "(s | safe).replace('a', s)", "(s | safe).join(list)", "dict.fromkeys(list)"};

BOOST_AUTO_TEST_SUITE(template_work)

BOOST_AUTO_TEST_CASE(each_operation_is_charged_for_what_it_reads_and_makes) {
  constexpr std::uint64_t kSteps = 150'000 / kScale;
  /// Of the time that as many steps of plain arithmetic take, in the same build on the same
  /// machine: the worst operation takes about four times as long, one that is not charged thousands
  /// of times.
  constexpr double kMaxRatio = 60;
  ChatTemplateInput input;
  input.messages_json = R"([{"role":"user","content":"x"}])";
  input.template_kwargs_json = hostile_variables();
  BOOST_REQUIRE(ChatTemplate::compile("{{ d2 }}").value()->render(input).ok());
  const auto seconds_of = [&](const std::string& operation) {
    const std::string source =
        "{% set number = 10 ** 4000 %}{% macro m() %}{{ varargs | length }}{{ kwargs | length }}{% "
        "endmacro %}"
        "{% macro macro_chain(a, b=a, c=b) %}{% macro n() %}{% endmacro %}{{ n() }}{% endmacro %}"
        "{% block text %}{{ s }}{% endblock %}{% for i in range(99999) %}{% set x = " +
        operation + " %}{% endfor %}";
    const auto compiled = ChatTemplate::compile(source, {.max_steps = kSteps});
    BOOST_REQUIRE_MESSAGE(compiled.ok(), operation);
    const double start = thread_seconds();
    static_cast<void>(compiled.value()->render(input));
    return thread_seconds() - start;
  };
  const double plain = std::max({seconds_of("i + 1"), seconds_of("i + 1"), seconds_of("i + 1")});
  for (const std::string operation : kOperations) {
    const double seconds = seconds_of(operation);
    BOOST_TEST(seconds < kMaxRatio * plain, operation << " took " << seconds / plain);
    BOOST_TEST_MESSAGE(operation << ": " << seconds / plain);
  }
}

BOOST_AUTO_TEST_CASE(no_operation_gets_past_the_limits) {
  const std::pair<const char*, const char*> cases[] = {
      // widths whose product with the fill's bytes is beyond any number
      {"{{ 'x'.ljust(9223372036854775807, '\u20ac') }}", "builds a text of"},
      {"{{ 'x'.rjust(6148914691236517206, '\u20ac') }}", "builds a text of"},
      {"{{ 'x'.center(4611686018427387905, '\U0001F600') }}", "builds a text of"},
      {"{{ 'x'.zfill(9223372036854775807) }}", "builds a text of"},
      {"{{ '-'.zfill(-9223372036854775807 - 1) }}", ""},
      {"{{ 'a\\tb'.expandtabs(9223372036854775807) }}", "builds a text of"},
      {"{{ ('ab' * 9223372036854775807) | length }}", "too large"},
      {"{{ '%s%s' % (('ab' * 30000000), ('ab' * 30000000)) }}", "needs more than"},
      {"{{ strftime_now('%c' * 3000000) }}", "needs more than"},
      {"{{ [1, 2] | tojson(indent='x' * 60000000) }}", "needs more than"},
      // a tuple of itself, 150 levels deep: hashing and comparing it takes 2^150 steps
      {"{% set ns = namespace(a=(1, 1), b=(1, 1)) %}{% for i in range(150) %}"
       "{% set ns.a = (ns.a, ns.a) %}{% set ns.b = (ns.b, ns.b) %}{% endfor %}{{ {ns.a: 1} | "
       "length }}",
       "needs more than"},
      {"{% set ns = namespace(a=(1, 1), b=(1, 1)) %}{% for i in range(150) %}"
       "{% set ns.a = (ns.a, ns.a) %}{% set ns.b = (ns.b, ns.b) %}{% endfor %}{{ ns.a == ns.b }}",
       "needs more than"},
      {"{% set ns = namespace(a=[]) %}{% for i in range(150) %}{% set ns.a = [ns.a, ns.a] %}"
       "{% endfor %}{{ ns.a | pprint }}",
       "needs more than"},
      {"{% set ns = namespace(a=[]) %}{% for i in range(150) %}{% set ns.a = [ns.a, ns.a] %}"
       "{% endfor %}{{ ns.a | tojson }}",
       ""},
      {"{% for i in range(99999) %}{% for j in range(99999) %}{% macro m() %}{% endmacro %}"
       "{% endfor %}{% endfor %}",
       "needs more than"},
      // blocks that call each other, twice each, and one that calls itself
      {"{% block a %}x{% endblock %}{% block b %}{{ self.a() }}{{ self.a() }}{% endblock %}"
       "{% block c %}{% for i in range(99999) %}{{ self.b() }}{% endfor %}{% endblock %}"
       "{% for i in range(99999) %}{{ self.c() }}{% endfor %}",
       "needs more than"},
      {"{% block a %}{{ self.a() }}{% endblock %}", "recurses too deeply"},
      {"{% autoescape true %}{% set ns = namespace(x='<') %}{% for i in range(99) %}"
       "{% set ns.x = (ns.x | e | string) ~ ns.x | forceescape %}{% endfor %}{{ ns.x }}"
       "{% endautoescape %}",
       "needs more than"},
      {"{{ ('a@b.cd ' * 4000000) | urlize }}", "needs more than"},
      {"{{ 'x' | urlize(rel='a ' * 30000000) }}", "needs more than"},
      {"{{ ('ftp:x ' * 100000) | urlize(extra_schemes=['ftp:'] * 100000) }}", "needs more than"},
      {"{{ ('\u20ac' * 3000000).encode('ascii', 'xmlcharrefreplace') }}", "needs more than"},
      {"{{ range(99999) | map('string') | map('urlize') | join | length }}", "needs more than"}};
  for (const auto& [source, words] : cases) {
    const auto compiled = ChatTemplate::compile(source, {.max_steps = 3'000'000});
    BOOST_REQUIRE(compiled.ok());
    const auto result =
        compiled.value()->render({.messages_json = R"([{"role":"user","content":"x"}])"});
    if (*words == '\0') continue;  // ends, either way
    BOOST_REQUIRE_MESSAGE(!result.ok(), source);
    BOOST_TEST(result.error().message.find(words) != std::string::npos,
               source << ": " << result.error().message);
  }
}

BOOST_AUTO_TEST_CASE(rendering_stops_when_it_is_cancelled_or_its_time_is_up) {
  const auto compiled = ChatTemplate::compile(
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
      {.max_steps = WorkBudget::kUnlimited});
  const ChatTemplateInput input{.messages_json = R"([{"role":"user","content":"x"}])"};
  const auto cancelled = std::make_shared<std::atomic<bool>>(true);
  const auto gone = compiled.value()->render(input, {.cancelled = cancelled, .deadline = {}});
  BOOST_TEST((gone.error().code == ErrorCode::kAborted));
  const auto late = compiled.value()->render(
      input, {.cancelled = {}, .deadline = std::chrono::steady_clock::now()});
  BOOST_TEST((late.error().code == ErrorCode::kTimeout));
}

BOOST_AUTO_TEST_CASE(keys_are_found_with_about_one_comparison_each) {
  constexpr std::size_t kNumKeys = 100'000;
  jinja::HashIndex index;
  std::size_t num_comparisons = 0;
  const auto find = [&](std::size_t key) {
    return index.find(keyed_hash(std::to_string(key)), [&](std::size_t position) {
      ++num_comparisons;
      return position == key;
    });
  };
  for (std::size_t i = 0; i < kNumKeys; ++i) {
    BOOST_REQUIRE(find(i) == jinja::HashIndex::kNone);
    index.add(keyed_hash(std::to_string(i)), i);
  }
  for (std::size_t i = 0; i < kNumKeys; ++i) BOOST_REQUIRE(find(i) == i);
  BOOST_TEST(num_comparisons < kNumKeys + 100);
}

BOOST_AUTO_TEST_CASE(objects_of_many_keys_take_time_in_proportion) {
  // With a search for each key this would be 10^10 comparisons a case.
  std::string keys = "\"k\":0";
  for (int i = 0; i < 150'000; ++i) keys += ",\"" + std::to_string(i) + "\":0";
  ChatTemplateInput input;
  input.messages_json = R"([{"role":"user","content":"x"}])";
  input.template_kwargs_json = "{" + keys + "}";
  BOOST_TEST(ChatTemplate::compile("{{ k }}").value()->render(input)->text == "0");
  std::string escaped;
  for (const char c : keys) escaped.append(c == '"' ? "\\\"" : std::string(1, c));
  const auto normalized = normalize_messages(
      R"([{"role":"assistant",)" + keys +
          R"(,"tool_calls":[{"function":{"name":"f","arguments":"{)" + escaped + R"(}"}}]}])",
      {});
  BOOST_REQUIRE(normalized.ok());
  BOOST_TEST(normalized->messages_json.size() > keys.size());
  const auto call = ChatTemplate::compile(
      "{% macro m() %}{{ kwargs | length }}{% endmacro %}{{ m(**d) }} {{ namespace(**d).k }}");
  input.template_kwargs_json = "{\"d\":{" + keys + "}}";
  BOOST_TEST(call.value()->render(input)->text == "150001 0");
}

BOOST_AUTO_TEST_CASE(many_developer_messages_are_merged_in_one_go) {
  std::string messages = R"([{"role":"system","content":"s"})";
  for (int i = 0; i < 100'000; ++i) messages += R"(,{"role":"developer","content":"d"})";
  const auto merged = normalize_messages(messages + "]", {});
  BOOST_REQUIRE(merged.ok());
  BOOST_TEST(
      merged->messages_json.starts_with(R"([{"role":"system","content":"s\n\nd\n\nd\n\nd\n\nd)"));
  BOOST_TEST(merged->messages_json.ends_with(R"(\n\nd"}])"));
}

BOOST_AUTO_TEST_CASE(many_generation_blocks_are_placed_in_one_pass) {
  const auto compiled = ChatTemplate::compile(
      "{% for i in range(99999) %}{% generation %}\u00e9\u00e9\u00e9\u00e9"
      "{% endgeneration %}{% endfor %}");
  const auto result =
      compiled.value()->render({.messages_json = R"([{"role":"user","content":"x"}])"});
  BOOST_REQUIRE(result.ok());
  BOOST_REQUIRE(result->generation_spans.size() == 99999u);
  BOOST_TEST((result->generation_spans.back() == TextSpan{4 * 99998, 4 * 99999}));
}

BOOST_AUTO_TEST_CASE(a_chain_of_macros_is_followed_without_recursion) {
  std::string source = "{% macro m0(c) %}{% for x in c %}{% endfor %}{% endmacro %}";
  constexpr int kNumMacros = 15'000;
  for (int i = 1; i < kNumMacros; ++i) {
    const std::string name = std::to_string(i);
    source += "{% macro m" + name + "(p" + name + ") %}{{ m" + std::to_string(i - 1) + "(p" + name +
              ") }}{% endmacro %}";
  }
  source += "{{ m" + std::to_string(kNumMacros - 1) + "(messages[0].content) }}";
  BOOST_TEST((ChatTemplate::compile(source).value()->content_format() == ContentFormat::kOpenAi));
}

BOOST_AUTO_TEST_CASE(an_error_shows_the_beginning_of_a_long_text) {
  const auto compiled = ChatTemplate::compile("{{ raise_exception('\u00e9' * 9999) }}");
  const auto result =
      compiled.value()->render({.messages_json = R"([{"role":"user","content":"x"}])"});
  BOOST_TEST(result.error().message.size() <= 1003u);
  BOOST_TEST(result.error().message.ends_with("\u00e9..."));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
