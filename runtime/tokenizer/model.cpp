#include "runtime/tokenizer/model.hpp"

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/bpe.hpp"
#include "runtime/tokenizer/json_fields.hpp"

namespace troupe {

using json_fields::Json;

Result<Vocabulary> read_vocabulary(const Json& model) {
  const auto entries = model.find("vocab");
  if (entries == model.end() || !entries->is_object()) {
    return json_fields::malformed("the model's \"vocab\" is not an object");
  }
  Vocabulary vocabulary;
  for (const auto& [token, id] : entries->items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > Vocabulary::kMaxId) {
      return json_fields::malformed("the id of token \"" + token + "\" is not a number from 0 to " +
                                    std::to_string(Vocabulary::kMaxId));
    }
    vocabulary.add(token, id.get<TokenId>());
  }
  return vocabulary;
}

Result<LoadedTokenModel> make_model(const Json& json, bool pieces_are_bytes) {
  if (!json.is_object()) return json_fields::malformed("missing \"model\"");
  ASSIGN_OR_RETURN(const auto given, json_fields::optional_text(json, "type"));
  // Early BPE files have no type.
  const std::string type = given.value_or(json.contains("merges") ? "BPE" : "");
  if (type == "BPE") return make_bpe(json, pieces_are_bytes);
  LoadedTokenModel loaded;
  if (type == "WordPiece") {
    ASSIGN_OR_RETURN(loaded.model, make_word_piece(json));
  } else if (type == "WordLevel") {
    ASSIGN_OR_RETURN(loaded.model, make_word_level(json));
  } else if (type == "Unigram") {
    ASSIGN_OR_RETURN(loaded.model, make_unigram(json));
  } else {
    return json_fields::unsupported("model " + (type.empty() ? "without a type" : type));
  }
  return loaded;
}

}  // namespace troupe
