#pragma once
// The methods of strings, lists, tuples, dicts and floats that the sandbox lets a template call.

#include <optional>
#include <string_view>

#include "runtime/chat/jinja/operations.hpp"

namespace troupe::jinja {

/// The method `name` of a plain value, bound to it; an undefined value for methods that would
/// change it; nullopt if its type has no such method.
[[nodiscard]] std::optional<Value> find_method(const Value& self, std::string_view name);
/// What the sandbox gives for an attribute that it hides: calling it or looking further fails.
[[nodiscard]] Value unsafe_attribute(const Value& self, std::string_view name);

/// dict.items(), keys() or values() without copying.
enum class DictPart { kItems, kKeys, kValues };
[[nodiscard]] Value dict_view(const Value& dict, DictPart part);

/// A function of the interpreter, as a value.
using NativeFunction = Value (*)(const Value& self, const Arguments& arguments, Runtime& runtime);
[[nodiscard]] Value make_function(std::string_view name, NativeFunction function,
                                  const Value& self = {});

/// The arguments of `call` for parameters `names`, in their order; nullopt where none was given.
/// Fails for too many, unknown or doubled ones, and if fewer than `num_required` are there.
[[nodiscard]] std::vector<std::optional<Value>> bind(const Arguments& call, std::string_view name,
                                                     std::initializer_list<std::string_view> names,
                                                     std::size_t num_required = 0);

}  // namespace troupe::jinja
