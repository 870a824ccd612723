#pragma once
// The methods of strings, lists, tuples, dicts and floats that the sandbox allows.

#include <optional>
#include <string_view>

#include "runtime/chat/jinja/operations.hpp"

namespace troupe::jinja {

/// The method `name` of a plain value, bound to it; an undefined value for mutating methods;
/// nullopt if its type has no such method.
[[nodiscard]] std::optional<Value> find_method(const Value& self, std::string_view name);
/// The sandbox's result for a hidden attribute: calling it or accessing its attributes fails.
[[nodiscard]] Value unsafe_attribute(const Value& self, std::string_view name);

/// dict.items(), keys() or values() without copying.
enum class DictPart { kItems, kKeys, kValues };
[[nodiscard]] Value dict_view(const Value& dict, DictPart part);

/// A native function as a value.
using NativeFunction = Value (*)(const Value& self, const Arguments& arguments, Runtime& runtime);
[[nodiscard]] Value make_function(std::string_view name, NativeFunction function,
                                  const Value& self = {});

/// The arguments of `call` for parameters `names`, in their order; nullopt if not given. Fails for
/// too many, unknown or duplicate ones, and for fewer than `num_required`.
[[nodiscard]] std::vector<std::optional<Value>> bind(const Arguments& call, std::string_view name,
                                                     std::initializer_list<std::string_view> names,
                                                     std::size_t num_required = 0);

}  // namespace troupe::jinja
