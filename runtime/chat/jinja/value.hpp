#pragma once
// The values of a template: the subset of Python's that templates can access. Containers are
// immutable (the sandbox forbids changing them), so values are shared freely and containers form no
// cycles.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/chat/jinja/error.hpp"
#include "runtime/chat/jinja/hash_index.hpp"

namespace troupe::jinja {

class Value;
class Dict;
class Object;
class Runtime;
struct BigInt;  // bigint.hpp; an integer outside of the int64 range

struct None {};

/// The result of a missing name or attribute. Prints as nothing; any use fails with `message`.
struct Undefined {
  std::shared_ptr<const std::string> message;
  bool is_security = false;  ///< the attribute exists, but the sandbox hides it
};

struct Text {
  std::shared_ptr<const std::string> utf8;
  bool markup = false;  ///< already escaped for HTML (Markup)
};

/// A list or a tuple.
struct Sequence;

/// A lazy sequence that can be iterated once: a generator.
class Stream {
 public:
  explicit Stream(std::uint32_t depth = 1) : depth_(depth) {
    if (depth > kMaxValueDepth) fail_limit("generators of the chat template are nested too deeply");
  }
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// The next value; nullopt at the end.
  virtual std::optional<Value> next() = 0;
  [[nodiscard]] std::uint32_t depth() const noexcept { return depth_; }

 private:
  std::uint32_t depth_;
};
using StreamPtr = std::shared_ptr<Stream>;

class Value {
 public:
  using Data = std::variant<None, Undefined, bool, std::int64_t, std::shared_ptr<const BigInt>,
                            double, Text, std::shared_ptr<const Sequence>,
                            std::shared_ptr<const Dict>, StreamPtr, std::shared_ptr<Object>>;

  Value() = default;  // none
  explicit Value(Data data) : data_(std::move(data)) {}
  Value(bool value) : data_(value) {}
  Value(std::int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string text) : data_(Text{std::make_shared<const std::string>(std::move(text))}) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(Text text) : data_(std::move(text)) {}
  Value(StreamPtr stream) : data_(std::move(stream)) {}
  Value(std::shared_ptr<const BigInt> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Object> object) : data_(std::move(object)) {}

  static Value undefined(std::string message, bool is_security = false);
  static Value markup(std::string text);
  static Value size(std::size_t value) { return Value(static_cast<std::int64_t>(value)); }
  /// Fail beyond kMaxValueDepth.
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value dict(Dict dict);

  template <class T>
  [[nodiscard]] const T* get_if() const noexcept {
    return std::get_if<T>(&data_);
  }
  [[nodiscard]] bool is_none() const noexcept { return get_if<None>() != nullptr; }
  [[nodiscard]] bool is_undefined() const noexcept { return get_if<Undefined>() != nullptr; }
  [[nodiscard]] bool is_string() const noexcept { return get_if<Text>() != nullptr; }
  [[nodiscard]] bool is_markup() const noexcept {
    const Text* text = get_if<Text>();
    return text && text->markup;
  }
  /// bool and all integers; Python's bool is an int.
  [[nodiscard]] bool is_integer() const noexcept;
  [[nodiscard]] bool is_number() const noexcept;
  /// nullptr if the value has another type.
  [[nodiscard]] const std::string* string() const noexcept;
  [[nodiscard]] const std::vector<Value>* items() const noexcept;  // of a list or tuple
  [[nodiscard]] bool is_list() const noexcept;
  [[nodiscard]] bool is_tuple() const noexcept;
  [[nodiscard]] const Dict* dict() const noexcept;
  [[nodiscard]] Object* object() const noexcept;
  template <class T>
  [[nodiscard]] std::shared_ptr<T> object_as() const noexcept {
    const auto* object = get_if<std::shared_ptr<Object>>();
    return object ? std::dynamic_pointer_cast<T>(*object) : nullptr;
  }
  /// bool and int64 as a number.
  [[nodiscard]] std::optional<std::int64_t> small_integer() const noexcept;
  [[nodiscard]] const Data& data() const noexcept { return data_; }
  /// Nesting depth of its containers: 0 for plain values.
  [[nodiscard]] std::uint32_t depth() const noexcept;

 private:
  Data data_;
};

struct Sequence {
  std::vector<Value> items;
  bool is_tuple = false;
  std::uint32_t depth = 1;
};

/// Insertion-ordered; keys compare as in Python (1 == 1.0 == True). Filled by its creator, then
/// frozen in a Value. Setting and finding cost time in the key's size, independent of the number of
/// entries.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;

  /// An existing key keeps its position and gets the new value. Fails for unhashable keys.
  void set(Value key, Value value, Budget& budget);
  void set(std::string_view key, Value value) { set(Text{nullptr, false}, key, std::move(value)); }
  /// Shares the key's text.
  void set(const Text& key, Value value) { set(key, *key.utf8, std::move(value)); }
  [[nodiscard]] const Value* find(std::string_view key) const noexcept;
  [[nodiscard]] const Value* find(const Value& key, Budget& budget) const;
  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }

 private:
  friend class Value;
  void set(const Text& shared, std::string_view key, Value value);
  [[nodiscard]] std::size_t place_of(std::string_view key) const noexcept;
  [[nodiscard]] std::size_t place_of(const Value& key, std::uint64_t hash, Budget& budget) const;

  std::vector<Entry> entries_;
  HashIndex index_;  ///< of all other keys, and of strings beyond kFewEntries
  bool has_indexed_strings_ = false;
  std::uint32_t depth_ = 1;
};

/// The arguments of a filter, test, function or macro call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  [[nodiscard]] const Value* find(std::string_view name) const;
};

/// Values that have attributes, are callable, or are created by the interpreter: functions, macros,
/// namespaces, loops, dict views, ranges.
class Object {
 public:
  explicit Object(std::uint32_t depth = 1) : depth_(depth) {
    if (depth > kMaxValueDepth) fail_limit("values of the chat template are nested too deeply");
  }
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  [[nodiscard]] virtual std::string type_name() const = 0;
  [[nodiscard]] virtual std::string repr(Runtime&) const { return "<" + type_name() + " object>"; }
  [[nodiscard]] virtual std::optional<Value> attribute(std::string_view, Runtime&) {
    return std::nullopt;
  }
  [[nodiscard]] virtual bool is_callable() const { return false; }
  virtual Value call(const Arguments&, Runtime&) {
    fail_type("'" + type_name() + "' object is not callable");
  }
  /// nullptr: not iterable.
  [[nodiscard]] virtual StreamPtr iterate(Runtime&) { return nullptr; }
  [[nodiscard]] virtual std::optional<std::size_t> length() const { return std::nullopt; }
  /// Element `index`, counted from the end if negative; only where has_items().
  [[nodiscard]] virtual bool has_items() const { return false; }
  [[nodiscard]] virtual std::optional<Value> item(std::int64_t) const { return std::nullopt; }
  /// Elements `first`, first + stride and so on, before `last`; nullopt: slice a list of them.
  [[nodiscard]] virtual std::optional<Value> slice(std::int64_t /*first*/, std::int64_t /*last*/,
                                                   std::int64_t /*stride*/) const {
    return std::nullopt;
  }
  /// Compares with another object; identity is checked before.
  [[nodiscard]] virtual bool equals(const Object& /*other*/, Budget& /*budget*/) const {
    return false;
  }
  /// Equal for equal objects; nullopt: by identity.
  [[nodiscard]] virtual std::optional<std::uint64_t> hash(Budget& /*budget*/) const {
    return std::nullopt;
  }
  [[nodiscard]] std::uint32_t depth() const noexcept { return depth_; }

 private:
  std::uint32_t depth_;
};

/// Python's name of the value's type: "str", "dict", "NoneType".
[[nodiscard]] std::string type_name(const Value& value);
[[noreturn]] void fail_undefined(const Undefined& undefined);

}  // namespace troupe::jinja
