#include <array>

#include "runtime/base/json.hpp"
#include "runtime/base/keyed_hash.hpp"
#include "runtime/chat/jinja/operations.hpp"

namespace troupe::jinja {
namespace {

/// Builds values from the parser's events, so that order, duplicate keys and large integers behave
/// as in Python.
class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit ValueBuilder(std::size_t max_depth) : max_depth_(max_depth) {}
  [[nodiscard]] Value take() { return std::move(result_); }

  bool null() override { return add(Value()); }
  bool boolean(bool flag) override { return add(Value(flag)); }
  bool number_integer(number_integer_t number) override { return add(Value(std::int64_t{number})); }
  bool number_unsigned(number_unsigned_t number) override {
    return add(*parse_integer(std::to_string(number)));
  }
  bool number_float(number_float_t number, const std::string& text) override {
    if (text.find_first_of(".eE") == std::string::npos) {
      std::optional<Value> integer = parse_integer(text);
      if (!integer) fail_value("an integer has too many digits");
      return add(*std::move(integer));
    }
    return add(Value(number));
  }
  bool string(std::string& text) override { return add(Value(shared(text))); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool key(std::string& name) override {
    open_.back().key = shared(name);
    return true;
  }
  bool end_object() override {
    Value value = Value::dict(std::move(open_.back().dict));
    open_.pop_back();
    return add(std::move(value));
  }
  bool end_array() override {
    Value value = Value::list(std::move(open_.back().items));
    open_.pop_back();
    return add(std::move(value));
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    fail_value("malformed JSON at byte " + std::to_string(position));
  }

 private:
  struct Container {
    bool is_object;
    Dict dict;
    Text key;
    std::vector<Value> items;
  };

  /// Interns keys and short texts that recur ("role", "user"); keeps the latest ones.
  Text shared(std::string& text) {
    constexpr std::size_t kMaxSharedBytes = 24;
    if (text.size() > kMaxSharedBytes) {
      return {std::make_shared<const std::string>(std::move(text)), false};
    }
    Text& latest = latest_[keyed_hash(text) % latest_.size()];
    if (!latest.utf8 || *latest.utf8 != text) {
      latest.utf8 = std::make_shared<const std::string>(std::move(text));
    }
    return latest;
  }

  bool open(bool is_object) {
    if (open_.size() >= max_depth_) {
      fail_value("JSON is nested deeper than " + std::to_string(max_depth_));
    }
    open_.push_back({is_object, {}, {}, {}});
    return true;
  }

  bool add(Value value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().dict.set(open_.back().key, std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  std::size_t max_depth_;
  std::vector<Container> open_;
  std::array<Text, 256> latest_;
  Value result_;
};

}  // namespace

Value parse_json(std::string_view text, std::size_t max_depth) {
  ValueBuilder builder(max_depth);
  nlohmann::json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace troupe::jinja
