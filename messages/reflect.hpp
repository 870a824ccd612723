#pragma once
// One reflection for every message: the names of a struct's fields and pointers to them. The codec
// (wire.hpp) and CAF's `inspect` (type_ids.hpp) are both written against it, so a field is listed
// once.

#include <concepts>
#include <tuple>
#include <type_traits>

namespace troupe {

template <class Class, class Member>
struct Field {
  const char* name;
  Member Class::*pointer;
};

/// Every message type provides `constexpr auto reflect(const T*)`, found by argument-dependent
/// lookup.
template <class T>
concept Reflected = requires {
  reflect(static_cast<const T*>(nullptr));
};

template <Reflected T>
constexpr auto fields_of() {
  return reflect(static_cast<const T*>(nullptr));
}

/// Calls f(field name, field value) for each field in the order in which they are listed.
template <class T, class Function>
requires Reflected<std::remove_const_t<T>>
constexpr void for_each_field(T& value, Function&& f) {
  std::apply([&](auto... field) { (f(field.name, value.*field.pointer), ...); },
             fields_of<std::remove_const_t<T>>());
}

}  // namespace troupe

// The preprocessor's recursion: each pass of EXPAND rescans its argument, 4^4 = 256 passes in all.
#define TROUPE_PARENS ()
#define TROUPE_EXPAND(...) \
  TROUPE_EXPAND3(TROUPE_EXPAND3(TROUPE_EXPAND3(TROUPE_EXPAND3(__VA_ARGS__))))
#define TROUPE_EXPAND3(...) \
  TROUPE_EXPAND2(TROUPE_EXPAND2(TROUPE_EXPAND2(TROUPE_EXPAND2(__VA_ARGS__))))
#define TROUPE_EXPAND2(...) \
  TROUPE_EXPAND1(TROUPE_EXPAND1(TROUPE_EXPAND1(TROUPE_EXPAND1(__VA_ARGS__))))
#define TROUPE_EXPAND1(...) __VA_ARGS__
#define TROUPE_FIELDS(type, ...) __VA_OPT__(TROUPE_EXPAND(TROUPE_FIELDS_STEP(type, __VA_ARGS__)))
#define TROUPE_FIELDS_STEP(type, field, ...)    \
  ::troupe::Field<type, decltype(type::field)>{ \
      #field, &type::field} __VA_OPT__(, TROUPE_FIELDS_AGAIN TROUPE_PARENS(type, __VA_ARGS__))
#define TROUPE_FIELDS_AGAIN() TROUPE_FIELDS_STEP

/// TROUPE_MESSAGE(Type, field...): stands behind the struct, in its namespace. The order is the
/// order on the wire; new fields go to the end, so that an older reader keeps its defaults.
#define TROUPE_MESSAGE(type, ...)                        \
  [[maybe_unused]] constexpr auto reflect(const type*) { \
    return std::tuple{TROUPE_FIELDS(type, __VA_ARGS__)}; \
  }
