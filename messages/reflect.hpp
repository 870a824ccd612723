#pragma once
// Reflection for all messages: visits a struct's fields by name. The codecs (wire.hpp,
// msgpack.hpp), the schema (schema.hpp) and CAF's `inspect` (type_ids.hpp) are written against it,
// so a field is listed once.

#include <type_traits>

namespace troupe {

/// Every message type provides `is_message(const T*)` and `visit_fields(const T*, object, f)`,
/// found by argument-dependent lookup. The visit is a sequence of plain calls: a tuple of the
/// fields would cost seconds of compile time in each file that includes messages.
template <class T>
concept Reflected = requires {
  is_message(static_cast<const T*>(nullptr));
};

/// Calls f(field name, field value) for each field in the order in which they are listed.
template <class T, class Function>
requires Reflected<std::remove_const_t<T>>
constexpr void for_each_field(T& value, Function&& f) {
  visit_fields(static_cast<const std::remove_const_t<T>*>(nullptr), value, f);
}

}  // namespace troupe

// Recursion in the preprocessor: each pass of EXPAND rescans its argument, 4^3 = 64 passes in all,
// so a message has at most 64 fields.
#define TROUPE_PARENS ()
#define TROUPE_EXPAND(...) \
  TROUPE_EXPAND2(TROUPE_EXPAND2(TROUPE_EXPAND2(TROUPE_EXPAND2(__VA_ARGS__))))
#define TROUPE_EXPAND2(...) \
  TROUPE_EXPAND1(TROUPE_EXPAND1(TROUPE_EXPAND1(TROUPE_EXPAND1(__VA_ARGS__))))
#define TROUPE_EXPAND1(...) \
  TROUPE_EXPAND0(TROUPE_EXPAND0(TROUPE_EXPAND0(TROUPE_EXPAND0(__VA_ARGS__))))
#define TROUPE_EXPAND0(...) __VA_ARGS__
#define TROUPE_VISITS(...) __VA_OPT__(TROUPE_EXPAND(TROUPE_VISIT_STEP(__VA_ARGS__)))
#define TROUPE_VISIT_STEP(field, ...) \
  f(#field, object.field);            \
  __VA_OPT__(TROUPE_VISIT_AGAIN TROUPE_PARENS(__VA_ARGS__))
#define TROUPE_VISIT_AGAIN() TROUPE_VISIT_STEP

/// TROUPE_MESSAGE(Type, field...): placed after the struct, in its namespace. The order is the
/// order on the wire; new fields are appended, so that an older reader keeps its defaults.
#define TROUPE_MESSAGE(type, ...)                                                           \
  [[maybe_unused]] constexpr void is_message(const type*) {}                                \
  template <class Object, class Function>                                                   \
  constexpr void visit_fields(const type*, [[maybe_unused]] Object& object, Function&& f) { \
    TROUPE_VISITS(__VA_ARGS__) static_cast<void>(f);                                        \
  }
