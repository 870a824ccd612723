#include "runtime/chat/jinja/value.hpp"

#include <algorithm>

#include "runtime/base/keyed_hash.hpp"
#include "runtime/chat/jinja/operations.hpp"

namespace troupe::jinja {
namespace {

void check_depth(std::uint32_t depth) {
  if (depth > kMaxValueDepth) {
    fail_limit("lists and dicts are nested deeper than " + std::to_string(kMaxValueDepth));
  }
}

Value make_sequence(std::vector<Value> items, bool is_tuple) {
  std::uint32_t depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  check_depth(++depth);
  return Value(Value::Data(std::make_shared<const Sequence>(
      Sequence{.items = std::move(items), .is_tuple = is_tuple, .depth = depth})));
}

}  // namespace

Value Value::undefined(std::string message, bool is_security) {
  return Value(
      Data(Undefined{std::make_shared<const std::string>(std::move(message)), is_security}));
}
Value Value::markup(std::string text) {
  return Value(Text{std::make_shared<const std::string>(std::move(text)), true});
}
Value Value::list(std::vector<Value> items) { return make_sequence(std::move(items), false); }
Value Value::tuple(std::vector<Value> items) { return make_sequence(std::move(items), true); }
Value Value::dict(Dict dict) {
  check_depth(dict.depth_);
  return Value(Data(std::make_shared<const Dict>(std::move(dict))));
}

bool Value::is_integer() const noexcept {
  return get_if<bool>() || get_if<std::int64_t>() || get_if<std::shared_ptr<const BigInt>>();
}
bool Value::is_number() const noexcept { return is_integer() || get_if<double>(); }
const std::string* Value::string() const noexcept {
  const Text* text = get_if<Text>();
  return text ? text->utf8.get() : nullptr;
}
const std::vector<Value>* Value::items() const noexcept {
  const auto* sequence = get_if<std::shared_ptr<const Sequence>>();
  return sequence ? &(*sequence)->items : nullptr;
}
bool Value::is_tuple() const noexcept {
  const auto* sequence = get_if<std::shared_ptr<const Sequence>>();
  return sequence && (*sequence)->is_tuple;
}
bool Value::is_list() const noexcept { return items() && !is_tuple(); }
const Dict* Value::dict() const noexcept {
  const auto* dict = get_if<std::shared_ptr<const Dict>>();
  return dict ? dict->get() : nullptr;
}
Object* Value::object() const noexcept {
  const auto* object = get_if<std::shared_ptr<Object>>();
  return object ? object->get() : nullptr;
}
std::optional<std::int64_t> Value::small_integer() const noexcept {
  if (const bool* flag = get_if<bool>()) return *flag ? 1 : 0;
  if (const std::int64_t* number = get_if<std::int64_t>()) return *number;
  return std::nullopt;
}

std::uint32_t Value::depth() const noexcept {
  if (const auto* sequence = get_if<std::shared_ptr<const Sequence>>()) return (*sequence)->depth;
  if (const Dict* entries = dict()) return entries->depth_;
  if (const auto* stream = get_if<StreamPtr>()) return (*stream)->depth();
  if (const Object* thing = object()) return thing->depth();
  return 0;
}

std::size_t Dict::place_of(std::string_view key) const noexcept {
  const auto has_key = [&](std::size_t i) {
    const std::string* text = entries_[i].first.string();
    return text && *text == key;
  };
  if (has_indexed_strings_) return index_.find(keyed_hash(key), has_key);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (has_key(i)) return i;
  }
  return HashIndex::kNone;
}

std::size_t Dict::place_of(const Value& key, std::uint64_t hash, Budget& budget) const {
  return index_.find(hash, [&](std::size_t i) { return equals(entries_[i].first, key, budget); });
}

void Dict::set(Value key, Value value, Budget& budget) {
  if (const Text* text = key.get_if<Text>()) {
    budget.charge_read(text->utf8->size());
    return set(*text, std::move(value));
  }
  const std::uint64_t hash = hash_of(key, budget);
  depth_ = std::max({depth_, key.depth() + 1, value.depth() + 1});
  if (const std::size_t place = place_of(key, hash, budget); place != HashIndex::kNone) {
    entries_[place].second = std::move(value);
    return;
  }
  index_.add(hash, entries_.size());
  entries_.emplace_back(std::move(key), std::move(value));
}

void Dict::set(const Text& shared, std::string_view key, Value value) {
  depth_ = std::max(depth_, value.depth() + 1);
  if (const std::size_t place = place_of(key); place != HashIndex::kNone) {
    entries_[place].second = std::move(value);
    return;
  }
  entries_.emplace_back(shared.utf8 ? Value(shared) : Value(key), std::move(value));
  if (has_indexed_strings_) {
    index_.add(keyed_hash(key), entries_.size() - 1);
  } else if (entries_.size() > kFewEntries) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (const std::string* text = entries_[i].first.string()) index_.add(keyed_hash(*text), i);
    }
    has_indexed_strings_ = true;
  }
}

const Value* Dict::find(std::string_view key) const noexcept {
  const std::size_t place = place_of(key);
  return place == HashIndex::kNone ? nullptr : &entries_[place].second;
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  if (const std::string* text = key.string()) {
    budget.charge_read(text->size());
    return find(*text);
  }
  const std::size_t place = place_of(key, hash_of(key, budget), budget);
  return place == HashIndex::kNone ? nullptr : &entries_[place].second;
}

const Value* Arguments::find(std::string_view name) const {
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::string type_name(const Value& value) {
  struct Visitor {
    std::string operator()(const None&) const { return "NoneType"; }
    std::string operator()(const Undefined&) const { return "Undefined"; }
    std::string operator()(bool) const { return "bool"; }
    std::string operator()(std::int64_t) const { return "int"; }
    std::string operator()(const std::shared_ptr<const BigInt>&) const { return "int"; }
    std::string operator()(double) const { return "float"; }
    std::string operator()(const Text& text) const { return text.markup ? "Markup" : "str"; }
    std::string operator()(const std::shared_ptr<const Sequence>& sequence) const {
      return sequence->is_tuple ? "tuple" : "list";
    }
    std::string operator()(const std::shared_ptr<const Dict>&) const { return "dict"; }
    std::string operator()(const StreamPtr&) const { return "generator"; }
    std::string operator()(const std::shared_ptr<Object>& object) const {
      return object->type_name();
    }
  };
  return std::visit(Visitor{}, value.data());
}

void fail_undefined(const Undefined& undefined) {
  throw TemplateError(
      undefined.is_security ? TemplateError::Kind::kSecurity : TemplateError::Kind::kUndefined,
      *undefined.message);
}

}  // namespace troupe::jinja
