#pragma once
// Messages as msgpack, in the layout of Python's msgspec, which vLLM and its tools use: structs are
// arrays of their fields, tagged structs are maps. Uses the same reflection as the other codecs
// (reflect.hpp).

#include <bit>
#include <concepts>
#include <cstdint>
#include <msgpack.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "messages/reflect.hpp"

namespace troupe::msgspec {

/// Binary data: msgpack's bin.
struct Bytes {
  std::string data;
  bool operator==(const Bytes&) const = default;
};

/// A field of a tagged struct that is omitted, key included, when it has no value. A plain
/// std::optional is encoded as nil.
template <class T>
struct Omittable : std::optional<T> {
  using std::optional<T>::optional;
};

/// A struct with `static constexpr const char* kTag` is a map: "type" with the tag, then the fields
/// by name, in their order.
template <class T>
concept Tagged = Reflected<T> && requires {
  { T::kTag } -> std::convertible_to<const char*>;
};

/// Appends to a string. Integers take their shortest form, floats are always 64 bits.
class Writer {
 public:
  explicit Writer(std::string& out) : sink_{out}, packer_(sink_) {}
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void put(bool x) { x ? packer_.pack_true() : packer_.pack_false(); }
  template <std::integral T>
  void put(T x) {
    packer_.pack(x);
  }
  /// Not the library's function, which encodes floats without a fraction as integers.
  void put(double x) {
    const auto bits = std::bit_cast<std::uint64_t>(x);
    sink_.out += '\xcb';
    for (int shift = 56; shift >= 0; shift -= 8) sink_.out += static_cast<char>(bits >> shift);
  }
  void put(std::string_view x) {
    packer_.pack_str(static_cast<std::uint32_t>(x.size()));
    packer_.pack_str_body(x.data(), static_cast<std::uint32_t>(x.size()));
  }
  void put(const std::string& x) { put(std::string_view(x)); }
  void put(const char* x) { put(std::string_view(x)); }
  void put(const Bytes& x) {
    packer_.pack_bin(static_cast<std::uint32_t>(x.data.size()));
    packer_.pack_bin_body(x.data.data(), static_cast<std::uint32_t>(x.data.size()));
  }
  void put(std::monostate) { packer_.pack_nil(); }
  template <class T>
  void put(const std::optional<T>& x) {
    if (x)
      put(*x);
    else
      packer_.pack_nil();
  }
  template <class T>
  void put(const std::vector<T>& x) {
    put_array(static_cast<std::uint32_t>(x.size()));
    for (const T& element : x) put(element);
  }
  template <class A, class B>
  void put(const std::pair<A, B>& x) {
    put_array(2);
    put(x.first), put(x.second);
  }
  /// `size` elements follow.
  void put_array(std::uint32_t size) { packer_.pack_array(size); }
  /// `num_fields` pairs of a name and a value follow.
  void put_map(std::uint32_t num_fields) { packer_.pack_map(num_fields); }
  /// Untagged: the alternative only.
  template <class... Ts>
  void put(const std::variant<Ts...>& x) {
    std::visit([&](const auto& alternative) { put(alternative); }, x);
  }
  template <Reflected T>
  void put(const T& x) {
    std::uint32_t num_fields = 0;
    for_each_field(x, [&](const char*, const auto&) { ++num_fields; });
    packer_.pack_array(num_fields);
    for_each_field(x, [&](const char*, const auto& field) { put(field); });
  }
  template <Tagged T>
  void put(const T& x) {
    std::uint32_t num_fields = 1;
    for_each_field(x,
                   [&](const char*, const auto& field) { num_fields += present(field) ? 1 : 0; });
    packer_.pack_map(num_fields);
    put("type"), put(T::kTag);
    for_each_field(x, [&](const char* name, const auto& field) {
      if (present(field)) put(name), put(field);
    });
  }

 private:
  template <class T>
  static bool present(const T&) noexcept {
    return true;
  }
  template <class T>
  static bool present(const Omittable<T>& field) noexcept {
    return field.has_value();
  }

  struct Sink {
    std::string& out;
    void write(const char* data, std::size_t size) { out.append(data, size); }
  };
  Sink sink_;
  ::msgpack::packer<Sink> packer_;
};

template <class T>
[[nodiscard]] std::string encode(const T& message) {
  std::string out;
  Writer(out).put(message);
  return out;
}

}  // namespace troupe::msgspec
