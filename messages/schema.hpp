#pragma once
// The message types as a text: builds with equal texts can read each other's messages.

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "messages/reflect.hpp"
#include "messages/shared_vector.hpp"

namespace troupe {

namespace internal {

template <class T>
struct SchemaOf;

template <class... Ts>
void append_schemas(std::string& out, char open, char close) {
  out += open;
  (SchemaOf<Ts>::append(out), ...);
  out += close;
}

/// A letter for the kind, then the bytes of one: u4, i8, f4, e1, b1.
template <class T>
requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) struct SchemaOf<T> {
  static void append(std::string& out) {
    out += std::is_enum_v<T>             ? 'e'
           : std::is_same_v<T, bool>     ? 'b'
           : std::is_floating_point_v<T> ? 'f'
           : std::is_signed_v<T>         ? 'i'
                                         : 'u';
    out += std::to_string(sizeof(T));
  }
};
template <>
struct SchemaOf<std::string> {
  static void append(std::string& out) { out += 's'; }
};
template <>
struct SchemaOf<std::monostate> {
  static void append(std::string& out) { out += '-'; }
};
template <class T>
struct SchemaOf<std::vector<T>> {
  static void append(std::string& out) { append_schemas<T>(out, '[', ']'); }
};
template <class T>
struct SchemaOf<SharedVector<T>> {
  static void append(std::string& out) { out += '&', SchemaOf<std::vector<T>>::append(out); }
};
template <class T, std::size_t n>
struct SchemaOf<std::array<T, n>> {
  static void append(std::string& out) {
    out += std::to_string(n);
    append_schemas<T>(out, '[', ']');
  }
};
template <class T>
struct SchemaOf<std::optional<T>> {
  static void append(std::string& out) { out += '?', SchemaOf<T>::append(out); }
};
template <class T>
struct SchemaOf<std::shared_ptr<const T>> {
  static void append(std::string& out) { out += '?', SchemaOf<T>::append(out); }
};
template <class A, class B>
struct SchemaOf<std::pair<A, B>> {
  static void append(std::string& out) { append_schemas<A, B>(out, '(', ')'); }
};
template <class K, class V, class... R>
struct SchemaOf<std::map<K, V, R...>> {
  static void append(std::string& out) { append_schemas<K, V>(out, '<', '>'); }
};
template <class K, class V, class... R>
struct SchemaOf<std::unordered_map<K, V, R...>> {
  static void append(std::string& out) { append_schemas<K, V>(out, '<', '>'); }
};
template <class... Ts>
struct SchemaOf<std::variant<Ts...>> {
  static void append(std::string& out) { out += '|', append_schemas<Ts...>(out, '(', ')'); }
};
template <Reflected T>
struct SchemaOf<T> {
  static void append(std::string& out) {
    out += '{';
    T object{};  // only its types are used, not its values
    for_each_field(object, [&out]<class Member>(const char* name, Member&) {
      out.append(name).append(1, ':');
      SchemaOf<Member>::append(out);
    });
    out += '}';
  }
};

}  // namespace internal

/// The schema of these types in this order, with all nested types.
template <class... Ts>
[[nodiscard]] std::string schema_text() {
  std::string text;
  internal::append_schemas<Ts...>(text, '(', ')');
  return text;
}

}  // namespace troupe
