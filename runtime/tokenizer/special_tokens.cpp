#include "runtime/tokenizer/special_tokens.hpp"

#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/gguf/model_files.hpp"

namespace troupe {
namespace {

/// Reads the array `added_tokens` of the root, and stops behind it.
class AddedTokensReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<std::string> special;
  bool has_read = false;  ///< the array
  bool is_wrong = false;

  bool null() override { return true; }
  bool boolean(bool value) override {
    if (is_in_token() && key_ == "special") is_special_ = value;
    return true;
  }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t& value) override {
    if (is_in_token() && key_ == "content") content_ = std::move(value);
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    ++depth_;
    content_.clear();
    is_special_ = false;
    return true;
  }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool end_object() override {
    if (is_in_token() && is_special_ && !content_.empty()) special.push_back(content_);
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    is_in_array_ |= depth_ == 1 && key_ == "added_tokens";
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    has_read = is_in_array_ && depth_ == 1;
    return !has_read;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    is_wrong = true;
    return false;
  }

 private:
  [[nodiscard]] bool is_in_token() const noexcept { return is_in_array_ && depth_ == 3; }

  int depth_ = 0;
  bool is_in_array_ = false;
  bool is_special_ = false;
  std::string key_;
  std::string content_;
};

}  // namespace

Result<std::vector<std::string>> parse_special_tokens(std::string_view tokenizer_json) {
  AddedTokensReader reader;
  nlohmann::json::sax_parse(tokenizer_json, &reader);
  if (reader.is_wrong) return Error{ErrorCode::kCorrupt, "tokenizer.json is not JSON", {}};
  return std::move(reader.special);
}

Result<std::vector<std::string>> load_special_tokens(const std::filesystem::path& model) {
  const auto text = read_model_text(model, "tokenizer.json");
  if (text.ok()) return parse_special_tokens(*text);
  if (text.error().code == ErrorCode::kNotFound) return std::vector<std::string>();
  return text.error();
}

}  // namespace troupe
