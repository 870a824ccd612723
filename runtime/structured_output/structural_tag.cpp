#include "runtime/structured_output/structural_tag.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "runtime/base/json_depth.hpp"
#include "runtime/base/ordered_json.hpp"
#include "runtime/structured_output/grammar_vocabulary.hpp"
#include "runtime/structured_output/lark.hpp"
#include "runtime/structured_output/regex.hpp"

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

constexpr std::size_t kMaxTexts = 1 << 16;  ///< triggers, tags, ends, elements of one format

class TagConversion {
 public:
  TagConversion(GrammarBuilder& builder, const JsonGrammarOptions& options,
                std::span<const std::string> special_tokens)
      : builder_(builder), options_(options), special_tokens_(special_tokens) {}

  GrammarNodeId convert(const Json& source) {
    if (source.contains("format")) {
      allow(source, {"type", "format"}, "structural_tag");
      return format(source["format"], {}, "format");
    }
    allow(source, {"type", "structures", "triggers"}, "structural_tag");
    const Json& structures = list(source, "structures", "structural_tag");
    std::vector<Tag> tags;
    for (std::size_t i = 0; i < structures.size(); ++i) {
      const std::string where = "structures[" + std::to_string(i) + "]";
      const Json& structure = structures[i];
      allow(structure, {"begin", "schema", "end"}, where);
      if (!structure.contains("schema")) fail(where + ".schema is missing");
      const std::string begin = text(structure, "begin", where);
      tags.push_back(
          {begin, builder_.sequence({builder_.literal(begin), schema(structure["schema"], options_),
                                     builder_.literal(text(structure, "end", where))})});
    }
    return triggered(texts(source, "triggers", "structural_tag"), tags, {}, "structural_tag");
  }

 private:
  /// A tag, and how it begins.
  struct Tag {
    std::string begin;
    GrammarNodeId node;
  };

  [[noreturn]] static void fail(const std::string& what) {
    throw GrammarRefused("structural_tag: " + what);
  }
  static void allow(const Json& object, std::initializer_list<std::string_view> names,
                    const std::string& where) {
    if (!object.is_object()) fail(where + " must be an object");
    for (const auto& [name, value] : object.items()) {
      if (std::find(names.begin(), names.end(), name) == names.end())
        fail(where + "." + name.substr(0, 64) + " is not supported");
    }
  }
  static std::string plain_text(const Json& object, const char* name, const std::string& where) {
    if (!object.contains(name) || !object[name].is_string())
      fail(where + "." + name + " must be a string");
    return object[name].get<std::string>();
  }
  static bool names_special_tokens(const Json& object, const std::string& where) {
    return flag(object, "special_tokens", where);
  }
  /// As the grammar has it.
  [[nodiscard]] std::string text(const Json& object, const char* name,
                                 const std::string& where) const {
    std::string plain = plain_text(object, name, where);
    return names_special_tokens(object, where) ? with_special_tokens(plain) : plain;
  }
  /// Special tokens are found from left to right, the longest of those that begin alike.
  [[nodiscard]] std::string with_special_tokens(std::string_view text) const {
    std::string marked;
    while (!text.empty()) {
      std::string_view longest;
      for (const std::string& token : special_tokens_)
        if (token.size() > longest.size() && text.starts_with(token)) longest = token;
      marked += longest.empty() ? std::string(1, text.front())
                                : GrammarVocabulary::special_bytes(longest);
      text.remove_prefix(std::max<std::size_t>(longest.size(), 1));
    }
    return marked;
  }
  /// As it was written.
  static std::string shown(std::string text) {
    std::erase(text, GrammarVocabulary::kSpecialMark);
    return text;
  }
  static const Json& list(const Json& object, const char* name, const std::string& where) {
    if (!object.contains(name) || !object[name].is_array() || object[name].empty())
      fail(where + "." + name + " must be a list that is not empty");
    if (object[name].size() > kMaxTexts)
      fail(where + "." + name + " has " + std::to_string(object[name].size()) +
           " entries, the limit is " + std::to_string(kMaxTexts));
    return object[name];
  }
  /// Texts that are not empty.
  [[nodiscard]] Texts texts(const Json& object, const char* name, const std::string& where) const {
    Texts found;
    const bool special = names_special_tokens(object, where);
    for (const Json& each : list(object, name, where)) {
      if (!each.is_string() || each.get_ref<const std::string&>().empty())
        fail(where + "." + name + " must have strings that are not empty");
      const auto& plain = each.get_ref<const std::string&>();
      found.push_back(special ? with_special_tokens(plain) : plain);
    }
    return found;
  }
  static bool flag(const Json& object, const char* name, const std::string& where) {
    if (!object.contains(name)) return false;
    if (!object[name].is_boolean()) fail(where + "." + name + " must be true or false");
    return object[name].get<bool>();
  }

  GrammarNodeId any_bytes() { return builder_.repeat(builder_.bytes(byte_range(0, 255)), 0); }

  /// Text in which none of these occurs; with or without special tokens.
  GrammarNodeId text_without(const Texts& excluded, bool has_special_tokens) {
    const GrammarNodeId text = characters(has_special_tokens);
    if (excluded.empty()) return text;
    std::vector<GrammarNodeId> found;
    for (const std::string& each : excluded)
      found.push_back(builder_.sequence({any_bytes(), builder_.literal(each), any_bytes()}));
    return builder_.intersection(text, builder_.complement(builder_.choice(found)));
  }
  /// Any text in UTF-8.
  GrammarNodeId characters(bool has_special_tokens) {
    GrammarNodeId one = builder_.code_points(CodePointSet{}.complement());
    if (has_special_tokens) {
      const GrammarNodeId mark =
          builder_.literal(std::string_view(&GrammarVocabulary::kSpecialMark, 1));
      const GrammarNodeId spelling = builder_.bytes(byte_range(0, 0xFE));
      one = builder_.choice({one, builder_.sequence({mark, builder_.repeat(spelling, 1), mark})});
    }
    return builder_.repeat(one, 0);
  }

  /// Regular expressions; none if there is no such field.
  static Texts patterns(const Json& object, const char* name, const std::string& where) {
    Texts found;
    if (!object.contains(name)) return found;
    for (const Json& pattern : list(object, name, where)) {
      if (!pattern.is_string()) fail(where + "." + name + " must have strings");
      found.push_back(pattern.get<std::string>());
    }
    return found;
  }
  /// Those of `text` that do not begin as one of the patterns says.
  GrammarNodeId not_beginning(GrammarNodeId text, const Texts& patterns) {
    if (patterns.empty()) return text;
    std::vector<GrammarNodeId> refused;
    for (const std::string& pattern : patterns)
      refused.push_back(builder_.sequence({add_regex(builder_, pattern, {}), any_bytes()}));
    return builder_.intersection(text, builder_.complement(builder_.choice(refused)));
  }

  GrammarNodeId schema(const Json& source, const JsonGrammarOptions& options) {
    if (source.is_boolean() || source.is_object())
      return add_json_schema(builder_, source.dump(), options);
    fail("a schema must be an object or a boolean");
  }

  /// `ends`: of the tag around it.
  GrammarNodeId format(const Json& source, const Texts& ends, const std::string& where) {
    if (!source.is_object()) fail(where + " must be an object");
    const std::string type = plain_text(source, "type", where);
    if (type == "const_string") {
      allow(source, {"type", "value", "special_tokens"}, where);
      return builder_.literal(text(source, "value", where));
    }
    if (type == "json_schema") {
      allow(source, {"type", "json_schema", "style", "any_order"}, where);
      if (source.contains("style") && source["style"] != "json")
        fail(where + ".style other than json is not supported");
      if (!source.contains("json_schema")) fail(where + ".json_schema is missing");
      JsonGrammarOptions options = options_;
      if (source.contains("any_order")) options.any_order = flag(source, "any_order", where);
      return schema(source["json_schema"], options);
    }
    if (type == "parameters") return parameters(source, where);
    if (type == "regex") {
      allow(source, {"type", "pattern"}, where);
      return add_regex(builder_, plain_text(source, "pattern", where), {});
    }
    if (type == "grammar") {
      allow(source, {"type", "grammar"}, where);
      return add_ebnf_or_lark(builder_, plain_text(source, "grammar", where));
    }
    if (type == "any_text") {
      allow(source, {"type", "excludes", "not_at_start", "special_tokens"}, where);
      Texts excluded = ends;
      if (source.contains("excludes") && !source["excludes"].empty())
        std::ranges::copy(texts(source, "excludes", where), std::back_inserter(excluded));
      return not_beginning(text_without(excluded, names_special_tokens(source, where)),
                           patterns(source, "not_at_start", where));
    }
    if (type == "sequence" || type == "or") {
      allow(source, {"type", "elements"}, where);
      std::vector<GrammarNodeId> elements;
      for (const Json& element : list(source, "elements", where))
        elements.push_back(
            format(element, ends, where + ".elements[" + std::to_string(elements.size()) + "]"));
      return type == "or" ? builder_.choice(elements) : builder_.sequence(elements);
    }
    if (type == "tag") return tag(source, where).node;
    if (type == "triggered_tags") {
      allow(source,
            {"type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes",
             "not_at_start", "special_tokens"},
            where);
      Texts excluded = ends;
      if (source.contains("excludes") && !source["excludes"].empty())
        std::ranges::copy(texts(source, "excludes", where), std::back_inserter(excluded));
      return triggered(texts(source, "triggers", where), tags(source, where),
                       {.excluded = std::move(excluded),
                        .not_at_start = patterns(source, "not_at_start", where),
                        .at_least_one = flag(source, "at_least_one", where),
                        .stop_after_first = flag(source, "stop_after_first", where),
                        .has_special_tokens = names_special_tokens(source, where)},
                       where);
    }
    if (type == "tags_with_separator") {
      allow(source,
            {"type", "tags", "separator", "at_least_one", "stop_after_first", "special_tokens"},
            where);
      return separated(source, where);
    }
    fail(where + ".type '" + type.substr(0, 64) + "' is not supported");
  }

  GrammarNodeId parameters(const Json& source, const std::string& where) {
    allow(source,
          {"type", "json_schema", "begin", "middle", "text_middle", "end", "separator", "texts",
           "special_tokens"},
          where);
    if (!source.contains("json_schema") || !source["json_schema"].is_object())
      fail(where + ".json_schema must be an object");
    ParameterStyle style{
        .begin = text(source, "begin", where),
        .middle = text(source, "middle", where),
        .text_middle =
            text(source, source.contains("text_middle") ? "text_middle" : "middle", where),
        .end = text(source, "end", where),
        .separator = text(source, "separator", where),
        .texts = {}};
    if (source.contains("texts") && !source["texts"].empty())
      style.texts = texts(source, "texts", where);
    return add_json_parameters(builder_, source["json_schema"].dump(), options_, style);
  }

  Tag tag(const Json& source, const std::string& where) {
    allow(source, {"type", "begin", "content", "end", "special_tokens"}, where);
    if (source.contains("type") && source["type"] != "tag") fail(where + ".type must be tag");
    const std::string begin = text(source, "begin", where);
    Texts ends;
    if (source.contains("end") && source["end"].is_array()) {
      for (const Json& end : list(source, "end", where)) {
        if (!end.is_string()) fail(where + ".end must be a string or a list of strings");
        const auto& plain = end.get_ref<const std::string&>();
        ends.push_back(names_special_tokens(source, where) ? with_special_tokens(plain) : plain);
      }
    } else {
      ends.push_back(text(source, "end", where));
    }
    if (!source.contains("content")) fail(where + ".content is missing");
    std::vector<GrammarNodeId> closing;
    for (const std::string& end : ends) closing.push_back(builder_.literal(end));
    std::erase(ends, "");
    return {begin, builder_.sequence({builder_.literal(begin),
                                      format(source["content"], ends, where + ".content"),
                                      builder_.choice(closing)})};
  }
  std::vector<Tag> tags(const Json& source, const std::string& where) {
    std::vector<Tag> found;
    for (const Json& each : list(source, "tags", where))
      found.push_back(tag(each, where + ".tags[" + std::to_string(found.size()) + "]"));
    return found;
  }

  /// Of the text around triggered tags.
  struct FreeText {
    Texts excluded;
    Texts not_at_start = {};  ///< of the whole
    bool at_least_one = false;
    bool stop_after_first = false;
    bool has_special_tokens = false;
  };

  /// Text without triggers; at each of them one of its tags.
  GrammarNodeId triggered(const Texts& triggers, const std::vector<Tag>& tags, FreeText text,
                          const std::string& where) {
    std::vector<GrammarNodeId> reachable;
    for (const Tag& each : tags) {
      const bool has_trigger = std::ranges::any_of(
          triggers, [&](const std::string& trigger) { return each.begin.starts_with(trigger); });
      if (!has_trigger)
        fail(where + ": no trigger begins the tag '" + shown(each.begin).substr(0, 64) + "'");
      reachable.push_back(each.node);
    }
    std::ranges::copy(triggers, std::back_inserter(text.excluded));
    // Nor is one spelled by other tokens, which who reads the text takes for it.
    for (const std::string& trigger : triggers)
      if (std::string spelled = shown(trigger); spelled != trigger)
        text.excluded.push_back(std::move(spelled));
    const GrammarNodeId free = text_without(text.excluded, text.has_special_tokens);
    const GrammarNodeId one = builder_.choice(reachable);
    const GrammarNodeId next = builder_.sequence({free, one});
    if (text.not_at_start.empty()) {
      if (text.stop_after_first) return text.at_least_one ? next : builder_.choice({next, free});
      return builder_.sequence({builder_.repeat(next, text.at_least_one ? 1 : 0), free});
    }
    const GrammarNodeId start = not_beginning(free, text.not_at_start);
    GrammarNodeId all = builder_.sequence({start, one});
    if (!text.stop_after_first) all = builder_.sequence({all, builder_.repeat(next, 0), free});
    return text.at_least_one ? all : builder_.choice({all, start});
  }

  GrammarNodeId separated(const Json& source, const std::string& where) {
    std::vector<GrammarNodeId> nodes;
    for (const Tag& each : tags(source, where)) nodes.push_back(each.node);
    const GrammarNodeId one = builder_.choice(nodes);
    GrammarNodeId all = one;
    if (!flag(source, "stop_after_first", where)) {
      const GrammarNodeId more =
          builder_.sequence({builder_.literal(text(source, "separator", where)), one});
      all = builder_.sequence({one, builder_.repeat(more, 0)});
    }
    return flag(source, "at_least_one", where) ? all : builder_.optional(all);
  }

  GrammarBuilder& builder_;
  const JsonGrammarOptions& options_;
  const std::span<const std::string> special_tokens_;
};

}  // namespace

Result<GrammarBuilder> structural_tag_grammar(std::string_view source,
                                              const JsonGrammarOptions& options,
                                              const GrammarLimits& limits,
                                              std::span<const std::string> special_tokens) {
  if (source.size() > limits.max_source_bytes)
    return invalid_argument("structural_tag: it has " + std::to_string(source.size()) +
                            " bytes, the limit is " + std::to_string(limits.max_source_bytes));
  const Json json = parse_bounded_json<Json>(source);
  if (!json.is_object())
    return invalid_argument("structural_tag: it is no JSON object, or is nested deeper than " +
                            std::to_string(kMaxJsonDepth) + " levels");
  try {
    GrammarBuilder builder(limits);
    const GrammarRuleId root = builder.add_rule();
    builder.set_body(root, TagConversion(builder, options, special_tokens).convert(json));
    return builder;
  } catch (const GrammarRefused& refused) {
    return refused.error();
  }
}

}  // namespace troupe
