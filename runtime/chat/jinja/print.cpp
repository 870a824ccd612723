// Text forms of values: str(), repr() and JSON.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "runtime/base/check.hpp"
#include "runtime/chat/jinja/operations.hpp"
#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {
namespace {

void append_hex(std::string& out, const char* format, char32_t c) {
  std::array<char, 16> buffer;
  std::snprintf(buffer.data(), buffer.size(), format, static_cast<unsigned>(c));
  out += buffer.data();
}

void append_string_repr(std::string& out, std::string_view text, const Budget& budget) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out += quote;
  for (std::size_t i = 0; i < text.size();) {
    budget.check_text_size(out.size());
    const char32_t c = decode_at(text, i);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c >= 0x20 && c < 0x7F) {
      out += static_cast<char>(c);
    } else if (c < 0x100 && !is_printable(c)) {
      append_hex(out, "\\x%02x", c);
    } else if (is_printable(c)) {
      append_utf8(out, c);
    } else {
      append_hex(out, c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
  }
  out += quote;
}

/// For one value inside a printed one, without its own elements.
void charge_leaf(const Value& value, Budget& budget) {
  budget.charge();
  if (const std::string* text = value.string()) {
    budget.check_text_size(text->size());
    budget.charge_characters(text->size());
  } else if (value.is_number()) {
    budget.charge(cost_of_digits(value));
  }
}

class ReprWriter {
 public:
  ReprWriter(std::string& out, Runtime& runtime) : out_(out), runtime_(runtime) {}

  void write(const Value& value) {
    const DepthGuard guard(runtime_);
    // A value that occurs repeatedly is charged each time.
    charge_leaf(value, runtime_.budget);
    std::visit(*this, value.data());
    runtime_.budget.check_text_size(out_.size());
  }

  void operator()(const None&) { out_ += "None"; }
  void operator()(const Undefined&) { out_ += "Undefined"; }
  void operator()(bool flag) { out_ += flag ? "True" : "False"; }
  void operator()(std::int64_t number) { out_ += std::to_string(number); }
  void operator()(const std::shared_ptr<const BigInt>& number) {
    out_ += number_text(Value(number));
  }
  void operator()(double number) { out_ += float_repr(number); }
  void operator()(const Text& text) {
    if (text.markup) out_ += "Markup(";
    append_string_repr(out_, *text.utf8, runtime_.budget);
    if (text.markup) out_ += ")";
  }
  void operator()(const std::shared_ptr<const Sequence>& sequence) {
    out_ += sequence->is_tuple ? '(' : '[';
    const char* separator = "";
    for (const Value& item : sequence->items) {
      out_ += separator;
      write(item);
      separator = ", ";
    }
    if (sequence->is_tuple && sequence->items.size() == 1) out_ += ',';
    out_ += sequence->is_tuple ? ')' : ']';
  }
  void operator()(const std::shared_ptr<const Dict>& dict) {
    out_ += '{';
    const char* separator = "";
    for (const auto& [key, value] : dict->entries()) {
      out_ += separator;
      write(key);
      out_ += ": ";
      write(value);
      separator = ", ";
    }
    out_ += '}';
  }
  void operator()(const StreamPtr&) { out_ += "<generator object>"; }
  void operator()(const std::shared_ptr<Object>& object) { out_ += object->repr(runtime_); }

 private:
  std::string& out_;
  Runtime& runtime_;
};

class JsonWriter {
 public:
  JsonWriter(std::string& out, const JsonStyle& style, Runtime& runtime)
      : out_(out), style_(style), runtime_(runtime) {}

  void write(const Value& value, std::size_t level) {
    const DepthGuard guard(runtime_);
    charge_leaf(value, runtime_.budget);
    if (value.is_none()) {
      out_ += "null";
    } else if (const bool* flag = value.get_if<bool>()) {
      out_ += *flag ? "true" : "false";
    } else if (value.is_number()) {
      out_ += number(value);
    } else if (const std::string* text = value.string()) {
      write_string(*text);
    } else if (const std::vector<Value>* items = value.items()) {
      write_row(*items, level, '[', ']', [&](const Value& item) { write(item, level + 1); });
    } else if (const Dict* dict = value.dict()) {
      write_dict(*dict, level);
    } else {
      fail_type("Object of type " + type_name(value) + " is not JSON serializable");
    }
    runtime_.budget.check_text_size(out_.size());
  }

 private:
  static std::string number(const Value& value) {
    const double* real = value.get_if<double>();
    if (real && std::isnan(*real)) return "NaN";
    if (real && std::isinf(*real)) return *real < 0 ? "-Infinity" : "Infinity";
    return number_text(value);
  }

  void write_string(std::string_view text) {
    out_ += '"';
    for (std::size_t i = 0; i < text.size();) {
      runtime_.budget.check_text_size(out_.size());
      const char32_t c = decode_at(text, i);
      if (c == '"' || c == '\\') {
        out_ += '\\';
        out_ += static_cast<char>(c);
      } else if (c == '\n') {
        out_ += "\\n";
      } else if (c == '\r') {
        out_ += "\\r";
      } else if (c == '\t') {
        out_ += "\\t";
      } else if (c == '\b') {
        out_ += "\\b";
      } else if (c == '\f') {
        out_ += "\\f";
      } else if (c < 0x20 || (style_.ensure_ascii && c > 0x7F && c < 0x10000)) {
        append_hex(out_, "\\u%04x", c);
      } else if (style_.ensure_ascii && c >= 0x10000) {
        append_hex(out_, "\\u%04x", 0xD800 + ((c - 0x10000) >> 10));
        append_hex(out_, "\\u%04x", 0xDC00 + ((c - 0x10000) & 0x3FF));
      } else {
        append_utf8(out_, c);
      }
    }
    out_ += '"';
  }

  /// json.dumps converts keys of the allowed other types to strings.
  void write_key(const Value& key) {
    charge_leaf(key, runtime_.budget);
    if (const std::string* text = key.string()) return write_string(*text);
    if (key.is_none()) return write_string("null");
    if (const bool* flag = key.get_if<bool>()) return write_string(*flag ? "true" : "false");
    if (key.is_number()) return write_string(number(key));
    fail_type("keys must be str, int, float, bool or None, not " + type_name(key));
  }

  void write_dict(const Dict& dict, std::size_t level) {
    std::vector<const Dict::Entry*> entries;
    runtime_.budget.charge(dict.size());
    for (const Dict::Entry& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        return compare(Comparison::kLess, a->first, b->first, runtime_.budget);
      });
    }
    write_row(entries, level, '{', '}', [&](const Dict::Entry* entry) {
      write_key(entry->first);
      runtime_.budget.charge_text(style_.key_separator.size());
      out_ += style_.key_separator;
      write(entry->second, level + 1);
    });
  }

  template <class Row, class Write>
  void write_row(const Row& row, std::size_t level, char open, char close, Write write_item) {
    out_ += open;
    bool is_first = true;
    for (const auto& item : row) {
      if (!is_first) {
        runtime_.budget.charge_text(style_.item_separator.size());
        out_ += style_.item_separator;
      }
      is_first = false;
      write_line_start(level + 1);
      write_item(item);
    }
    if (!row.empty()) write_line_start(level);
    out_ += close;
  }

  void write_line_start(std::size_t level) {
    if (!style_.indent) return;
    runtime_.budget.charge_copies(style_.indent->size(), level);
    out_ += '\n';
    for (std::size_t i = 0; i < level; ++i) out_ += *style_.indent;
  }

  std::string& out_;
  const JsonStyle& style_;
  Runtime& runtime_;
};

}  // namespace

std::string repr(const Value& value, Runtime& runtime) {
  std::string out;
  ReprWriter(out, runtime).write(value);
  return out;
}

std::string to_text(const Value& value, Runtime& runtime) {
  if (const std::string* text = value.string()) {
    runtime.budget.charge_text(text->size());
    return *text;
  }
  if (value.is_undefined()) return {};
  return repr(value, runtime);
}

std::string escape_html(std::string_view text, Budget& budget) {
  budget.check_text_size(text.size());
  budget.charge_characters(text.size());
  std::string escaped;
  for (const char c : text) {
    budget.check_text_size(escaped.size());
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      case '"':
        escaped += "&#34;";
        break;
      default:
        escaped += c;
    }
  }
  budget.charge_text(escaped.size());
  return escaped;
}

std::string to_markup(const Value& value, Runtime& runtime) {
  if (value.is_markup()) return to_text(value, runtime);
  const std::string* text = value.string();
  return escape_html(text ? *text : to_text(value, runtime), runtime.budget);
}

std::string to_json(const Value& value, const JsonStyle& style, Runtime& runtime) {
  std::string out;
  JsonWriter(out, style, runtime).write(value, 0);
  return out;
}

std::string dump_json(const Value& value) {
  class NoRendering : public Runtime {
   public:
    NoRendering() : Runtime(Budget({}, WorkBudget::kUnlimited, ~std::size_t{0}), 0, 0) {}
    void at_end(std::function<void()>) override { CHECK(false); }
  };
  NoRendering runtime;
  JsonStyle compact;
  compact.item_separator = ",";
  compact.key_separator = ":";
  return to_json(value, compact, runtime);
}

}  // namespace troupe::jinja
