#include "runtime/tokenizer/post_processor.hpp"

#include <algorithm>

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/byte_level.hpp"
#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace troupe {
namespace {

using json_fields::Json;

/// White space, or the byte-level form of the space.
bool is_space(char32_t c) { return c == 0x120 || unicode::is_whitespace(c); }

std::size_t leading_spaces(std::string_view text) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < text.size() && is_space(unicode::next(text, i));) ++n;
  return n;
}

std::size_t trailing_spaces(std::string_view text) {
  std::size_t n = 0;
  for (std::size_t end = text.size(); end > 0 && is_space(unicode::previous(text, end));) ++n;
  return n;
}

/// ["</s>", 2] of RobertaProcessing and BertProcessing.
Result<TokenId> read_token_pair(const Json& json, const char* key) {
  const auto pair = json.find(key);
  if (pair == json.end() || !pair->is_array() || pair->size() != 2 ||
      !(*pair)[1].is_number_unsigned() || (*pair)[1].get<std::uint64_t>() > Vocabulary::kMaxId) {
    return json_fields::malformed(std::string("\"") + key + "\" is not a token and its id");
  }
  return (*pair)[1].get<TokenId>();
}

}  // namespace

Result<PostProcessor> PostProcessor::from_json(const Json& json) {
  PostProcessor processor;
  if (!json.is_null()) RETURN_IF_ERROR(processor.add(json));
  return processor;
}

Result<void> PostProcessor::add(const Json& json) {
  ASSIGN_OR_RETURN(const std::string type, json_fields::type_of(json, "post_processor"));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const Json* list, json_fields::array(json, "processors"));
    for (const Json& step : *list) RETURN_IF_ERROR(add(step));
    return {};
  }
  const bool is_roberta = type == "RobertaProcessing";
  if (type == "ByteLevel" || is_roberta) {
    Trimming trimming;
    ASSIGN_OR_RETURN(trimming.enabled, json_fields::boolean(json, "trim_offsets", true));
    ASSIGN_OR_RETURN(trimming.keeps_prefix_space,
                     json_fields::boolean(json, "add_prefix_space", true));
    if (trimming.enabled) trimming_ = trimming;
    if (!is_roberta) return {};
  }
  if (single_) return json_fields::unsupported("a post_processor with two templates");
  if (type == "TemplateProcessing") {
    ASSIGN_OR_RETURN(single_, read_template(json, "single"));
    ASSIGN_OR_RETURN(pair_, read_template(json, "pair"));
    return {};
  }
  if (is_roberta || type == "BertProcessing") {
    ASSIGN_OR_RETURN(const TokenId begin, read_token_pair(json, "cls"));
    ASSIGN_OR_RETURN(const TokenId end, read_token_pair(json, "sep"));
    single_ = bert_like(begin, end, is_roberta, false);
    pair_ = bert_like(begin, end, is_roberta, true);
    return {};
  }
  return json_fields::unsupported("post_processor " + type);
}

PostProcessor::Template PostProcessor::bert_like(TokenId begin, TokenId end, bool is_roberta,
                                                 bool is_pair) {
  Template parts = {{-1, 0, {begin}}, {0, 0, {}}, {-1, 0, {end}}};
  if (!is_pair) return parts;
  const int second_type = is_roberta ? 0 : 1;
  if (is_roberta) parts.push_back({-1, second_type, {end}});
  parts.push_back({1, second_type, {}});
  parts.push_back({-1, second_type, {end}});
  return parts;
}

Result<PostProcessor::Template> PostProcessor::read_template(const Json& json, const char* key) {
  ASSIGN_OR_RETURN(const Json* list, json_fields::array(json, key));
  const Json specials = json.value("special_tokens", Json::object());
  Template parts;
  for (const Json& entry : *list) {
    if (!entry.is_object() || entry.size() != 1) {
      return json_fields::malformed("a template part is not an object with one key");
    }
    const std::string& kind = entry.begin().key();
    const Json& body = entry.begin().value();
    TemplatePart part;
    ASSIGN_OR_RETURN(const std::string id, json_fields::text(body, "id"));
    ASSIGN_OR_RETURN(const auto type_id, json_fields::number(body, "type_id", 0));
    part.type_id = static_cast<int>(type_id);
    if (kind == "Sequence" && (id == "A" || id == "B")) {
      part.sequence = id == "A" ? 0 : 1;
    } else if (kind == "SpecialToken" && specials.is_object() && specials.contains(id)) {
      ASSIGN_OR_RETURN(const Json* ids, json_fields::array(specials[id], "ids"));
      for (const Json& token_id : *ids) {
        if (!token_id.is_number_unsigned() || token_id.get<std::uint64_t>() > Vocabulary::kMaxId) {
          return json_fields::malformed("the template's token \"" + id + "\" has no valid id");
        }
        part.ids.push_back(token_id.get<TokenId>());
      }
    } else {
      return json_fields::malformed("the template's part \"" + id + "\" is unknown");
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

void PostProcessor::trim(std::vector<PlacedToken>& tokens) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::size_t leading = leading_spaces(tokens[i].text);
    const std::size_t trailing = trailing_spaces(tokens[i].text);
    TextOffsets& offsets = tokens[i].offsets;
    const bool is_first = i == 0 || offsets.begin == 0;
    if (is_first && trimming_.keeps_prefix_space && leading == 1) leading = 0;
    offsets.begin = std::min(offsets.begin + leading, offsets.end);
    if (offsets.end >= trailing) offsets.end = std::max(offsets.end - trailing, offsets.begin);
  }
}

Encoding PostProcessor::process(std::vector<PlacedToken> first, std::vector<PlacedToken>* second,
                                bool add_special_tokens) const {
  if (trimming_.enabled) {
    trim(first);
    if (second != nullptr) trim(*second);
  }
  const auto& chosen = second != nullptr ? pair_ : single_;
  Template plain = {{0, 0, {}}};
  if (second != nullptr) plain.push_back({1, 1, {}});

  Encoding encoding;
  for (const TemplatePart& part : chosen ? *chosen : plain) {
    const auto push = [&](TokenId id, TextOffsets offsets, bool is_special) {
      encoding.ids.push_back(id);
      encoding.offsets.push_back(offsets);
      encoding.type_ids.push_back(part.type_id);
      encoding.special_tokens_mask.push_back(is_special);
      encoding.sequence_ids.push_back(is_special ? std::nullopt : std::optional(part.sequence));
    };
    if (part.sequence < 0) {
      if (!add_special_tokens) continue;
      for (const TokenId id : part.ids) push(id, {}, true);
    } else if (part.sequence == 0) {
      for (const PlacedToken& token : first) push(token.id, token.offsets, false);
    } else if (second != nullptr) {
      for (const PlacedToken& token : *second) push(token.id, token.offsets, false);
    }
  }
  return encoding;
}

void PostProcessor::add_special_ids(std::vector<TokenId>& ids) const {
  if (!single_) return;
  std::vector<TokenId> all;
  all.reserve(ids.size() + single_->size());
  for (const TemplatePart& part : *single_) {
    const std::vector<TokenId>& source = part.sequence == 0 ? ids : part.ids;
    all.insert(all.end(), source.begin(), source.end());
  }
  ids = std::move(all);
}

}  // namespace troupe
