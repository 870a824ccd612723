#include "runtime/chat/jinja/value.hpp"

#include <algorithm>

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

void Dict::set(Value key, Value value, Budget& budget) {
  if (const std::string* text = key.string()) return set(*text, std::move(value));
  check_hashable(key);
  depth_ = std::max({depth_, key.depth() + 1, value.depth() + 1});
  for (const std::size_t index : other_keys_) {
    if (equals(entries_[index].first, key, budget)) {
      entries_[index].second = std::move(value);
      return;
    }
  }
  other_keys_.push_back(entries_.size());
  entries_.emplace_back(std::move(key), std::move(value));
}

void Dict::set(std::string_view key, Value value) {
  depth_ = std::max(depth_, value.depth() + 1);
  const auto [place, is_new] = string_index_.try_emplace(std::string(key), entries_.size());
  if (is_new) {
    entries_.emplace_back(Value(key), std::move(value));
  } else {
    entries_[place->second].second = std::move(value);
  }
}

const Value* Dict::find(std::string_view key) const noexcept {
  // Short dicts, that is nearly all, are searched faster than hashed.
  if (entries_.size() <= 8) {
    for (const Entry& entry : entries_) {
      const std::string* text = entry.first.string();
      if (text && *text == key) return &entry.second;
    }
    return nullptr;
  }
  const auto place = string_index_.find(std::string(key));
  return place == string_index_.end() ? nullptr : &entries_[place->second].second;
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  if (const std::string* text = key.string()) return find(*text);
  check_hashable(key);
  for (const std::size_t index : other_keys_) {
    if (equals(entries_[index].first, key, budget)) return &entries_[index].second;
  }
  return nullptr;
}

void Dict::erase(std::string_view key) {
  const auto place = string_index_.find(std::string(key));
  if (place == string_index_.end()) return;
  const std::size_t index = place->second;
  string_index_.erase(place);
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(index));
  for (auto& [name, position] : string_index_) position -= position > index;
  for (std::size_t& position : other_keys_) position -= position > index;
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
