#include "runtime/chat/content_format.hpp"

#include <set>

#include "runtime/chat/jinja/ast_walk.hpp"

namespace troupe {
namespace {

using namespace jinja;

/// Which names stand for a content grows while the template is walked, and whether a loop goes over
/// one of them. Names are not told apart by scope; templates do not reuse them that way.
class ContentLoops {
 public:
  [[nodiscard]] bool found() const { return found_; }

  void walk(const Body& body) {
    for (const Statement& statement : body) {
      std::visit(Overloaded{[](const TextOutput&) {}, [](const Break&) {}, [](const Continue&) {},
                            [&](const Output& node) { walk(*node.value); },
                            [&](const If& node) {
                              for (const auto& [condition, branch] : node.branches) {
                                walk(*condition);
                                walk(branch);
                              }
                              walk(node.otherwise);
                            },
                            [&](const For& node) {
                              walk(*node.iterable);
                              found_ |= is_content(*node.iterable);
                              walk(node.body);
                              walk(node.otherwise);
                            },
                            [&](const Set& node) {
                              walk(*node.value);
                              if (!node.target.is_tuple && is_content(*node.value)) {
                                aliases_.insert(node.target.name);
                              }
                            },
                            [&](const SetBlock& node) { walk(node.body); },
                            [&](const Macro& node) {
                              macros_.emplace_back(node.macro.name, &node.macro);
                              walk(node.macro.body);
                            },
                            [&](const CallBlock& node) {
                              walk(*node.call);
                              walk(node.caller.body);
                            },
                            [&](const FilterBlock& node) { walk(node.body); },
                            [&](const With& node) {
                              for (const auto& [target, value] : node.assignments) {
                                if (is_content(*value)) aliases_.insert(target.name);
                              }
                              walk(node.body);
                            },
                            [&](const Generation& node) { walk(node.body); },
                            [&](const Block& node) { walk(node.body); }},
                 statement.node);
    }
  }

 private:
  /// Finds calls of macros with a content among the arguments.
  void walk(const Expression& expression) {
    if (const auto* call = std::get_if<Call>(&expression.node)) follow(*call);
    for_each_child(expression, [&](const Expression& child) { walk(child); });
  }

  void follow(const Call& call) {
    const auto* name = std::get_if<Name>(&call.callee->node);
    if (!name) return;
    for (const auto& [macro_name, macro] : macros_) {
      if (macro_name != name->name) continue;
      bool is_new = false;
      for (std::size_t i = 0; i < macro->parameters.size(); ++i) {
        const std::string& parameter = macro->parameters[i].name;
        const bool by_place =
            i < call.arguments.positional.size() && is_content(*call.arguments.positional[i]);
        bool by_name = false;
        for (const auto& [key, argument] : call.arguments.named) {
          by_name |= key == parameter && is_content(*argument);
        }
        if (by_place || by_name) is_new |= aliases_.insert(parameter).second;
      }
      if (is_new) walk(macro->body);
    }
  }

  [[nodiscard]] bool is_content(const Expression& expression) const {
    if (const auto* name = std::get_if<Name>(&expression.node)) {
      return aliases_.contains(name->name);
    }
    if (const auto* attribute = std::get_if<Attribute>(&expression.node)) {
      return attribute->name == "content";
    }
    if (const auto* item = std::get_if<Item>(&expression.node)) {
      const auto* key = std::get_if<Literal>(&item->key->node);
      return key && key->value.is_string() && *key->value.string() == "content";
    }
    if (const auto* filter = std::get_if<Filter>(&expression.node)) {
      return filter->input && is_content(*filter->input);
    }
    if (const auto* slice = std::get_if<Slice>(&expression.node)) return is_content(*slice->object);
    return false;
  }

  std::set<std::string> aliases_{"content"};
  std::vector<std::pair<std::string, const MacroNode*>> macros_;
  bool found_ = false;
};

}  // namespace

ContentFormat detect_content_format(const jinja::Body& body) {
  ContentLoops loops;
  loops.walk(body);
  return loops.found() ? ContentFormat::kOpenAi : ContentFormat::kString;
}

}  // namespace troupe
