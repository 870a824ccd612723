#pragma once
// Variables of a running template.

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/keyed_hash.hpp"
#include "runtime/chat/jinja/hash_index.hpp"
#include "runtime/chat/jinja/value.hpp"

namespace troupe::jinja {

/// Named values in insertion order. The names outlive it.
class NamedValues {
 public:
  /// An existing name keeps its position.
  void set(std::string_view name, Value value) {
    if (const std::size_t place = place_of(name); place != HashIndex::kNone) {
      entries_[place].second = std::move(value);
      return;
    }
    entries_.emplace_back(name, std::move(value));
    if (entries_.size() == kFewEntries + 1) {
      for (std::size_t i = 0; i < entries_.size(); ++i) {
        index_.add(keyed_hash(entries_[i].first), i);
      }
    } else if (entries_.size() > kFewEntries) {
      index_.add(keyed_hash(name), entries_.size() - 1);
    }
  }
  /// nullptr if there is none.
  [[nodiscard]] const Value* find(std::string_view name) const noexcept {
    const std::size_t place = place_of(name);
    return place == HashIndex::kNone ? nullptr : &entries_[place].second;
  }
  void clear() {
    entries_.clear();
    index_.clear();
  }

 private:
  [[nodiscard]] std::size_t place_of(std::string_view name) const noexcept {
    if (entries_.size() > kFewEntries) {
      return index_.find(keyed_hash(name),
                         [&](std::size_t i) { return entries_[i].first == name; });
    }
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].first == name) return i;
    }
    return HashIndex::kNone;
  }

  std::vector<std::pair<std::string_view, Value>> entries_;
  HashIndex index_;  ///< empty up to kFewEntries
};

/// The variables of one frame: the template, a loop iteration, a macro call, a block. Macros keep
/// their defining scope, so scopes are shared. Names point into the syntax tree.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent = nullptr) : parent_(std::move(parent)) {}

  void set(std::string_view name, Value value) { variables_.set(name, std::move(value)); }
  /// Looks in this scope and the enclosing ones; nullptr if not found.
  [[nodiscard]] const Value* find(std::string_view name, Budget& budget) const {
    std::uint64_t num_scopes = 0;
    const Value* value = nullptr;
    for (const Scope* scope = this; scope && !value; scope = scope->parent_.get()) {
      value = scope->variables_.find(name);
      ++num_scopes;
    }
    budget.charge(num_scopes / 4 + name.size() / 16);
    return value;
  }
  void clear() { variables_.clear(); }

 private:
  std::shared_ptr<Scope> parent_;
  NamedValues variables_;
};
using ScopePtr = std::shared_ptr<Scope>;

}  // namespace troupe::jinja
