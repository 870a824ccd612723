#pragma once
// Post-processors: add special tokens around encoded texts and trim offsets.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "runtime/tokenizer/vocabulary.hpp"

namespace troupe {

/// A token with its position in the text, before post-processing.
struct PlacedToken {
  TokenId id = 0;
  TextOffsets offsets;
  std::string
      text;  ///< the token as the model or the text writes it: white space in it can be trimmed
};

class PostProcessor {
 public:
  /// null JSON gives one that adds nothing. Errors: kUnsupported (the type's name), kCorrupt.
  static Result<PostProcessor> from_json(const nlohmann::json& json);

  /// `second` is null for a single text.
  [[nodiscard]] Encoding process(std::vector<PlacedToken> first, std::vector<PlacedToken>* second,
                                 bool add_special_tokens) const;
  /// As above for the ids of a single text, in place.
  void add_special_ids(std::vector<TokenId>& ids) const;

 private:
  struct TemplatePart {
    int sequence = -1;  ///< 0 or 1: the text; -1: special tokens
    int type_id = 0;
    std::vector<TokenId> ids;
  };
  using Template = std::vector<TemplatePart>;

  struct Trimming {
    bool enabled = false;
    bool keeps_prefix_space =
        false;  ///< add_prefix_space: the first token's one space is not in the text
  };

  Result<void> add(const nlohmann::json& json);
  static Result<Template> read_template(const nlohmann::json& json, const char* key);
  static Template bert_like(TokenId begin, TokenId end, bool is_roberta, bool is_pair);
  void trim(std::vector<PlacedToken>& tokens) const;

  Trimming trimming_;
  std::optional<Template> single_;
  std::optional<Template> pair_;
};

}  // namespace troupe
