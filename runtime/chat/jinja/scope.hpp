#pragma once
// Where names live while a template runs.

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/chat/jinja/value.hpp"

namespace troupe::jinja {

/// The variables of one frame: the template, a loop's pass, a macro's call, a block. Macros keep
/// the scope they are defined in, so scopes are shared. Names point into the syntax tree.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent = nullptr) : parent_(std::move(parent)) {}

  void set(std::string_view name, Value value) {
    for (auto& [key, old] : variables_) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    variables_.emplace_back(name, std::move(value));
  }
  /// In this scope or the ones around it; nullptr if nowhere.
  [[nodiscard]] const Value* find(std::string_view name) const noexcept {
    for (const Scope* scope = this; scope; scope = scope->parent_.get()) {
      for (const auto& [key, value] : scope->variables_) {
        if (key == name) return &value;
      }
    }
    return nullptr;
  }
  void clear() { variables_.clear(); }

 private:
  std::shared_ptr<Scope> parent_;
  std::vector<std::pair<std::string_view, Value>> variables_;
};
using ScopePtr = std::shared_ptr<Scope>;

}  // namespace troupe::jinja
