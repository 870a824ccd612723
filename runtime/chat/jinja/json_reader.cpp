#include <nlohmann/json.hpp>

#include "runtime/chat/jinja/operations.hpp"

namespace troupe::jinja {
namespace {

/// Builds values from the parser's events, so that order, repeated keys and large integers come out
/// as in Python.
class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
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
  bool string(std::string& text) override { return add(Value(std::move(text))); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool key(std::string& name) override {
    open_.back().key = std::move(name);
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
    std::string key;
    std::vector<Value> items;
  };

  bool open(bool is_object) {
    if (open_.size() >= kMaxValueDepth) {
      fail_value("JSON is nested deeper than " + std::to_string(kMaxValueDepth));
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

  std::vector<Container> open_;
  Value result_;
};

}  // namespace

Value parse_json(std::string_view text) {
  ValueBuilder builder;
  nlohmann::json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace troupe::jinja
