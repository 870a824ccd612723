#include "runtime/structured_output/structural_tag.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "runtime/base/json_depth.hpp"
#include "runtime/base/ordered_json.hpp"
#include "runtime/structured_output/lark.hpp"
#include "runtime/structured_output/regex.hpp"

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

constexpr std::size_t kMaxTexts = 1 << 16;  ///< triggers, tags, ends, elements of one format

class TagConversion {
 public:
  TagConversion(GrammarBuilder& builder, const JsonGrammarOptions& options)
      : builder_(builder), options_(options) {}

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
          {begin, builder_.sequence({builder_.literal(begin), schema(structure["schema"]),
                                     builder_.literal(text(structure, "end", where))})});
    }
    return triggered(texts(source, "triggers", "structural_tag"), tags, {}, false, false,
                     "structural_tag");
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
  static std::string text(const Json& object, const char* name, const std::string& where) {
    if (!object.contains(name) || !object[name].is_string())
      fail(where + "." + name + " must be a string");
    return object[name].get<std::string>();
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
  static Texts texts(const Json& object, const char* name, const std::string& where) {
    Texts found;
    for (const Json& each : list(object, name, where)) {
      if (!each.is_string() || each.get_ref<const std::string&>().empty())
        fail(where + "." + name + " must have strings that are not empty");
      found.push_back(each.get<std::string>());
    }
    return found;
  }
  static bool flag(const Json& object, const char* name, const std::string& where) {
    if (!object.contains(name)) return false;
    if (!object[name].is_boolean()) fail(where + "." + name + " must be true or false");
    return object[name].get<bool>();
  }

  GrammarNodeId any_bytes() { return builder_.repeat(builder_.bytes(byte_range(0, 255)), 0); }

  /// Text in which none of these occurs.
  GrammarNodeId text_without(const Texts& excluded) {
    if (excluded.empty()) return characters();
    std::vector<GrammarNodeId> found;
    for (const std::string& each : excluded)
      found.push_back(builder_.sequence({any_bytes(), builder_.literal(each), any_bytes()}));
    return builder_.intersection(characters(), builder_.complement(builder_.choice(found)));
  }
  /// Any text in UTF-8.
  GrammarNodeId characters() {
    return builder_.repeat(builder_.code_points(CodePointSet{}.complement()), 0);
  }

  GrammarNodeId schema(const Json& source) {
    if (source.is_boolean() || source.is_object())
      return add_json_schema(builder_, source.dump(), options_);
    fail("a schema must be an object or a boolean");
  }

  /// `ends`: of the tag around it.
  GrammarNodeId format(const Json& source, const Texts& ends, const std::string& where) {
    if (!source.is_object()) fail(where + " must be an object");
    const std::string type = text(source, "type", where);
    if (type == "const_string") {
      allow(source, {"type", "value"}, where);
      return builder_.literal(text(source, "value", where));
    }
    if (type == "json_schema") {
      allow(source, {"type", "json_schema", "style"}, where);
      if (source.contains("style") && source["style"] != "json")
        fail(where + ".style other than json is not supported");
      if (!source.contains("json_schema")) fail(where + ".json_schema is missing");
      return schema(source["json_schema"]);
    }
    if (type == "parameters") return parameters(source, where);
    if (type == "regex") {
      allow(source, {"type", "pattern"}, where);
      return add_regex(builder_, text(source, "pattern", where), {});
    }
    if (type == "grammar") {
      allow(source, {"type", "grammar"}, where);
      return add_ebnf_or_lark(builder_, text(source, "grammar", where));
    }
    if (type == "any_text") {
      allow(source, {"type", "excludes"}, where);
      Texts excluded = ends;
      if (source.contains("excludes") && !source["excludes"].empty())
        std::ranges::copy(texts(source, "excludes", where), std::back_inserter(excluded));
      return text_without(excluded);
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
      allow(source, {"type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes"},
            where);
      Texts excluded = ends;
      if (source.contains("excludes") && !source["excludes"].empty())
        std::ranges::copy(texts(source, "excludes", where), std::back_inserter(excluded));
      return triggered(texts(source, "triggers", where), tags(source, where), excluded,
                       flag(source, "at_least_one", where), flag(source, "stop_after_first", where),
                       where);
    }
    if (type == "tags_with_separator") {
      allow(source, {"type", "tags", "separator", "at_least_one", "stop_after_first"}, where);
      return separated(source, where);
    }
    fail(where + ".type '" + type.substr(0, 64) + "' is not supported");
  }

  GrammarNodeId parameters(const Json& source, const std::string& where) {
    allow(source, {"type", "json_schema", "begin", "middle", "end", "separator", "texts"}, where);
    if (!source.contains("json_schema") || !source["json_schema"].is_object())
      fail(where + ".json_schema must be an object");
    ParameterStyle style{.begin = text(source, "begin", where),
                         .middle = text(source, "middle", where),
                         .end = text(source, "end", where),
                         .separator = text(source, "separator", where),
                         .texts = {}};
    if (source.contains("texts") && !source["texts"].empty())
      style.texts = texts(source, "texts", where);
    return add_json_parameters(builder_, source["json_schema"].dump(), options_, style);
  }

  Tag tag(const Json& source, const std::string& where) {
    allow(source, {"type", "begin", "content", "end"}, where);
    if (source.contains("type") && source["type"] != "tag") fail(where + ".type must be tag");
    const std::string begin = text(source, "begin", where);
    Texts ends;
    if (source.contains("end") && source["end"].is_array()) {
      for (const Json& end : list(source, "end", where)) {
        if (!end.is_string()) fail(where + ".end must be a string or a list of strings");
        ends.push_back(end.get<std::string>());
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

  /// Text without triggers; at each of them one of its tags.
  GrammarNodeId triggered(const Texts& triggers, const std::vector<Tag>& tags, Texts excluded,
                          bool at_least_one, bool stop_after_first, const std::string& where) {
    std::vector<GrammarNodeId> reachable;
    for (const Tag& each : tags) {
      const bool has_trigger = std::ranges::any_of(
          triggers, [&](const std::string& trigger) { return each.begin.starts_with(trigger); });
      if (!has_trigger)
        fail(where + ": no trigger begins the tag '" + each.begin.substr(0, 64) + "'");
      reachable.push_back(each.node);
    }
    std::ranges::copy(triggers, std::back_inserter(excluded));
    const GrammarNodeId free = text_without(excluded);
    const GrammarNodeId next = builder_.sequence({free, builder_.choice(reachable)});
    if (stop_after_first) return at_least_one ? next : builder_.choice({next, free});
    return builder_.sequence({builder_.repeat(next, at_least_one ? 1 : 0), free});
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
};

}  // namespace

Result<GrammarBuilder> structural_tag_grammar(std::string_view source,
                                              const JsonGrammarOptions& options,
                                              const GrammarLimits& limits) {
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
    builder.set_body(root, TagConversion(builder, options).convert(json));
    return builder;
  } catch (const GrammarRefused& refused) {
    return refused.error();
  }
}

}  // namespace troupe
