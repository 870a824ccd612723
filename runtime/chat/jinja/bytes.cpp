#include "runtime/chat/jinja/bytes.hpp"

#include <array>
#include <cstdio>

#include "runtime/base/keyed_hash.hpp"
#include "runtime/chat/jinja/methods.hpp"
#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {
namespace {

enum class Encoding { kUtf8, kAscii, kLatin1 };

Encoding encoding_of(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c != '-' && c != '_' && c != ' ') plain += c;
  }
  plain = to_lower(plain);
  if (plain == "utf8" || plain == "u8") return Encoding::kUtf8;
  if (plain == "ascii" || plain == "usascii") return Encoding::kAscii;
  if (plain == "latin1" || plain == "iso88591" || plain == "l1") return Encoding::kLatin1;
  fail_value("unknown encoding: " + std::string(name) +
             " (chat templates have utf-8, ascii and latin-1)");
}

std::string number(const char* format, char32_t c) {
  std::array<char, 16> buffer;
  std::snprintf(buffer.data(), buffer.size(), format, static_cast<unsigned>(c));
  return buffer.data();
}

/// The replacement of a character that an encoding lacks.
std::string replacement(char32_t c, std::string_view errors, std::string_view encoding) {
  if (errors == "ignore") return "";
  if (errors == "replace") return "?";
  if (errors == "xmlcharrefreplace") return number("&#%u;", c);
  if (errors == "backslashreplace") {
    return number(c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
  }
  if (errors != "strict") fail_value("unknown error handler name '" + std::string(errors) + "'");
  fail_value("'" + std::string(encoding) + "' codec can't encode character " + number("U+%04X", c));
}

/// The arguments of encode() and decode().
std::pair<std::string, std::string> codec_of(const Arguments& call, std::string_view name) {
  const auto arguments = bind(call, name, {"encoding", "errors"});
  std::string texts[] = {"utf-8", "strict"};
  for (std::size_t i = 0; i < 2; ++i) {
    if (!arguments[i]) continue;
    if (!arguments[i]->is_string()) {
      fail_type(std::string(name) + "() argument " + std::to_string(i + 1) + " must be str, not " +
                type_name(*arguments[i]));
    }
    texts[i] = *arguments[i]->string();
  }
  return {texts[0], texts[1]};
}

class Bytes : public Object, public std::enable_shared_from_this<Bytes> {
 public:
  explicit Bytes(std::string bytes) : bytes_(std::move(bytes)) {}
  static Value make(std::string bytes) {
    return Value(std::shared_ptr<Object>(std::make_shared<Bytes>(std::move(bytes))));
  }

  [[nodiscard]] std::string type_name() const override { return "bytes"; }
  [[nodiscard]] std::string repr(Runtime& runtime) const override {
    runtime.budget.charge_characters(4 * bytes_.size());
    const bool has_single = bytes_.find('\'') != std::string::npos;
    const char quote = has_single && bytes_.find('"') == std::string::npos ? '"' : '\'';
    std::string text = std::string("b") + quote;
    for (const char c : bytes_) {
      runtime.budget.check_text_size(text.size());
      const auto byte = static_cast<unsigned char>(c);
      if (c == quote || c == '\\') {
        text += std::string("\\") + c;
      } else if (c == '\t' || c == '\n' || c == '\r') {
        text += c == '\t' ? "\\t" : c == '\n' ? "\\n" : "\\r";
      } else if (byte < 0x20 || byte >= 0x7F) {
        text += number("\\x%02x", byte);
      } else {
        text += c;
      }
    }
    return text + quote;
  }
  [[nodiscard]] std::optional<Value> attribute(std::string_view name, Runtime&) override;
  [[nodiscard]] std::optional<std::size_t> length() const override { return bytes_.size(); }
  [[nodiscard]] StreamPtr iterate(Runtime& runtime) override {
    return make_stream(
        [self = shared_from_this(), index = std::size_t{0},
         &runtime]() mutable -> std::optional<Value> {
          runtime.budget.charge();
          if (index >= self->bytes_.size()) return std::nullopt;
          return byte(self->bytes_[index++]);
        },
        1);
  }
  [[nodiscard]] bool has_items() const override { return true; }
  [[nodiscard]] std::optional<Value> item(std::int64_t index) const override {
    const auto size = static_cast<std::int64_t>(bytes_.size());
    if (index < 0) index += size;
    if (index < 0 || index >= size) return std::nullopt;
    return byte(bytes_[static_cast<std::size_t>(index)]);
  }
  [[nodiscard]] std::optional<Value> slice(std::int64_t first, std::int64_t last,
                                           std::int64_t stride) const override {
    std::string part;
    for (std::int64_t i = first; stride > 0 ? i < last : i > last; i += stride) {
      part += bytes_[static_cast<std::size_t>(i)];
    }
    return make(std::move(part));
  }
  [[nodiscard]] bool equals(const Object& other, Budget& budget) const override {
    const auto* bytes = dynamic_cast<const Bytes*>(&other);
    budget.charge_read(bytes_.size());
    return bytes != nullptr && bytes->bytes_ == bytes_;
  }
  [[nodiscard]] std::optional<std::uint64_t> hash(Budget& budget) const override {
    budget.charge_read(bytes_.size());
    return keyed_hash(bytes_);
  }
  [[nodiscard]] const std::string& bytes() const noexcept { return bytes_; }

 private:
  static Value byte(char c) { return Value(std::int64_t{static_cast<unsigned char>(c)}); }

  std::string bytes_;
};

const std::string& bytes_of(const Value& self) {
  return static_cast<const Bytes&>(*self.object()).bytes();
}

Value decode(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto [name, errors] = codec_of(call, "decode");
  const Encoding encoding = encoding_of(name);
  const std::string& bytes = bytes_of(self);
  runtime.budget.charge_characters(bytes.size());
  runtime.budget.charge_text(2 * bytes.size());
  if (encoding == Encoding::kLatin1) {
    std::string text;
    for (const char c : bytes) append_utf8(text, static_cast<unsigned char>(c));
    return Value(std::move(text));
  }
  const bool is_valid = encoding == Encoding::kUtf8 ? is_valid_utf8(bytes) : is_ascii(bytes);
  if (!is_valid) fail_value("'" + name + "' codec can't decode the bytes");
  return Value(bytes);
}

Value hex(const Value& self, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "hex", {});
  runtime.budget.charge_text(2 * bytes_of(self).size());
  std::string digits;
  for (const char c : bytes_of(self)) digits += number("%02x", static_cast<unsigned char>(c));
  return Value(std::move(digits));
}

std::optional<Value> Bytes::attribute(std::string_view name, Runtime&) {
  const Value self(std::static_pointer_cast<Object>(shared_from_this()));
  if (name == "decode") return make_function(name, decode, self);
  if (name == "hex") return make_function(name, hex, self);
  return std::nullopt;
}

}  // namespace

Value encode(std::string_view text, std::string_view name, std::string_view errors,
             Runtime& runtime) {
  const Encoding encoding = encoding_of(name);
  runtime.budget.charge_characters(text.size());
  if (encoding == Encoding::kUtf8) return Bytes::make(std::string(text));
  std::string bytes;
  for (std::size_t i = 0; i < text.size();) {
    const char32_t c = decode_at(text, i);
    if (c < (encoding == Encoding::kAscii ? 0x80 : 0x100)) {
      bytes += static_cast<char>(static_cast<unsigned char>(c));
    } else {
      bytes += replacement(c, errors, name);
    }
    runtime.budget.check_text_size(bytes.size());
  }
  return Bytes::make(std::move(bytes));
}

}  // namespace troupe::jinja
