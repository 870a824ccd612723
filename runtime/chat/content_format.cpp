#include "runtime/chat/content_format.hpp"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/chat/jinja/ast_walk.hpp"

namespace troupe {
namespace {

using namespace jinja;

/// Data flow between names. Scopes are ignored; templates do not reuse names in a way that matters.
/// Besides variables, "name(0)" and "name(key" are the arguments of a macro's calls.
class ContentFlow {
 public:
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
                              add_flow(*node.iterable, kLoops);
                              walk(node.body);
                              walk(node.otherwise);
                            },
                            [&](const Set& node) {
                              walk(*node.value);
                              if (!node.target.is_tuple) add_flow(*node.value, node.target.name);
                            },
                            [&](const SetBlock& node) { walk(node.body); },
                            [&](const Macro& node) { add_macro(node.macro); },
                            [&](const CallBlock& node) {
                              walk(*node.call);
                              walk(node.caller.body);
                            },
                            [&](const FilterBlock& node) { walk(node.body); },
                            [&](const With& node) {
                              for (const auto& [target, value] : node.assignments) {
                                add_flow(*value, target.name);
                              }
                              walk(node.body);
                            },
                            [&](const Generation& node) { walk(node.body); },
                            [&](const AutoEscape& node) { walk(node.body); },
                            [&](const Block& node) { walk(*node.body); }},
                 statement.node);
    }
  }

  /// Whether a message's content reaches a loop.
  [[nodiscard]] bool reaches_loop() const {
    std::set<std::string> reached{kContent};
    std::vector<std::string> waiting{kContent};
    while (!waiting.empty()) {
      const auto flows = flows_.find(waiting.back());
      waiting.pop_back();
      if (flows == flows_.end()) continue;
      for (const std::string& target : flows->second) {
        if (reached.insert(target).second) waiting.push_back(target);
      }
    }
    return reached.contains(kLoops);
  }

 private:
  inline static const std::string kContent = "content";
  inline static const std::string kLoops = "for";  // cannot be the name of a variable

  static std::string argument(const std::string& macro, std::size_t place) {
    return macro + "(" + std::to_string(place) + ")";
  }
  static std::string argument(const std::string& macro, const std::string& name) {
    return macro + "(" + name;
  }

  void walk(const Expression& expression) {
    if (const auto* call = std::get_if<Call>(&expression.node)) {
      if (const auto* macro = std::get_if<Name>(&call->callee->node)) {
        for (std::size_t i = 0; i < call->arguments.positional.size(); ++i) {
          add_flow(*call->arguments.positional[i], argument(macro->name, i));
        }
        for (const auto& [name, value] : call->arguments.named) {
          add_flow(*value, argument(macro->name, name));
        }
      }
    }
    for_each_child(expression, [&](const Expression& child) { walk(child); });
  }

  void add_macro(const MacroNode& macro) {
    for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
      const std::string& parameter = macro.parameters[i].name;
      flows_[argument(macro.name, i)].push_back(parameter);
      flows_[argument(macro.name, parameter)].push_back(parameter);
    }
    walk(macro.body);
  }

  /// Records that `expression` may flow into `target`: a content, a variable's value, or either
  /// through filters and slices.
  void add_flow(const Expression& expression, const std::string& target) {
    const Expression* source = &expression;
    while (true) {
      if (const auto* filter = std::get_if<Filter>(&source->node); filter && filter->input) {
        source = filter->input.get();
      } else if (const auto* slice = std::get_if<Slice>(&source->node)) {
        source = slice->object.get();
      } else {
        break;
      }
    }
    if (const auto* name = std::get_if<Name>(&source->node)) {
      flows_[name->name].push_back(target);
    } else if (is_content(*source)) {
      flows_[kContent].push_back(target);
    }
  }

  /// x.content or x["content"].
  static bool is_content(const Expression& expression) {
    if (const auto* attribute = std::get_if<Attribute>(&expression.node)) {
      return attribute->name == kContent;
    }
    const auto* item = std::get_if<Item>(&expression.node);
    const auto* key = item ? std::get_if<Literal>(&item->key->node) : nullptr;
    return key && key->value.is_string() && *key->value.string() == kContent;
  }

  std::map<std::string, std::vector<std::string>> flows_;
};

}  // namespace

ContentFormat detect_content_format(const jinja::Body& body) {
  ContentFlow flow;
  flow.walk(body);
  return flow.reaches_loop() ? ContentFormat::kOpenAi : ContentFormat::kString;
}

}  // namespace troupe
