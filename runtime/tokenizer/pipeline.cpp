#include "runtime/tokenizer/pipeline.hpp"

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/byte_level.hpp"
#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace troupe {
namespace {

using json_fields::Json;

/// A key's value, null if absent.
const Json& field(const Json& json, const char* key) {
  static const Json kNull;
  const auto it = json.find(key);
  return it == json.end() ? kNull : *it;
}

/// `text` itself, or a copy in `storage` with U+FFFD for invalid UTF-8.
std::string_view as_valid(std::string_view text, std::string& storage) {
  if (unicode::is_valid(text)) return text;
  unicode::append_lossy(storage, text);
  return storage;
}

/// Number of characters before each byte of a text, the end included.
std::vector<std::size_t> character_indices(std::string_view text) {
  std::vector<std::size_t> indices(text.size() + 1);
  std::size_t num_characters = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    indices[i] = num_characters;
    const bool is_last =
        i + 1 == text.size() || !unicode::is_continuation(static_cast<unsigned char>(text[i + 1]));
    num_characters += is_last;
  }
  indices[text.size()] = num_characters;
  return indices;
}

}  // namespace

Result<std::unique_ptr<const TokenizerPipeline>> TokenizerPipeline::from_json(const Json& json) {
  if (!json.is_object()) return json_fields::malformed("not an object");
  std::unique_ptr<TokenizerPipeline> pipeline(new TokenizerPipeline());
  ASSIGN_OR_RETURN(pipeline->normalizer_, make_normalizer(field(json, "normalizer")));
  const Json& pre_tokenizer = field(json, "pre_tokenizer");
  ASSIGN_OR_RETURN(LoadedTokenModel loaded,
                   make_model(field(json, "model"), ends_in_byte_level(pre_tokenizer)));
  pipeline->model_ = std::move(loaded.model);
  ASSIGN_OR_RETURN(pipeline->pre_tokenizer_, make_pre_tokenizer(pre_tokenizer, loaded.takes_bytes));
  pipeline->needs_origins_ = depends_on_origin(pre_tokenizer);
  ASSIGN_OR_RETURN(pipeline->added_,
                   AddedVocabulary::from_json(field(json, "added_tokens"), pipeline->vocabulary(),
                                              *pipeline->normalizer_));
  ASSIGN_OR_RETURN(pipeline->post_processor_,
                   PostProcessor::from_json(field(json, "post_processor")));
  const Json& decoder = field(json, "decoder");
  ASSIGN_OR_RETURN(pipeline->decoder_, make_decoder(decoder));
  pipeline->decodes_byte_level_ = decoder.is_object() && field(decoder, "type") == "ByteLevel";
  if (decodes_tokens_apart(decoder)) {
    pipeline->lone_texts_ = std::make_unique<LoneTexts>(pipeline->vocabulary().id_limit());
  }
  return std::unique_ptr<const TokenizerPipeline>(std::move(pipeline));
}

template <class OnAdded, class OnPiece>
void TokenizerPipeline::run(std::string_view text, bool tracks_origins, WorkBudget& work,
                            const OnAdded& on_added, const OnPiece& on_piece) const {
  std::vector<PieceToken> tokens;
  const auto run_model = [&](AlignedText part) {
    const std::size_t num_bytes = part.view().size();
    PreTokenizedText cut{std::move(part), {}};
    if (num_bytes > 0) cut.pieces.push_back({0, num_bytes});
    pre_tokenizer_->apply(cut, work);
    for (const ByteRange piece : cut.pieces) {
      tokens.clear();
      model_->tokenize(cut.text.view(piece), tokens, work);
      on_piece(cut.text, piece, tokens);
    }
  };
  const AlignedText whole(text, 0, tracks_origins);
  for (const AddedSplit& raw : added_.split_raw(text, work)) {
    if (raw.token != nullptr) {
      on_added(*raw.token, whole, raw.range);
      continue;
    }
    AlignedText normalized = whole.slice(raw.range);
    normalizer_->apply(normalized, work);
    const std::vector<AddedSplit> splits = added_.split_normalized(normalized.view(), work);
    if (splits.size() == 1 && splits.front().token == nullptr) {
      run_model(std::move(normalized));
      continue;
    }
    for (const AddedSplit& split : splits) {
      if (split.token != nullptr) {
        on_added(*split.token, normalized, split.range);
      } else {
        run_model(normalized.slice(split.range));
      }
    }
  }
}

std::vector<TokenId> TokenizerPipeline::encode(std::string_view text, bool add_special_tokens,
                                               WorkBudget& work) const {
  std::string storage;
  const std::string_view valid = as_valid(text, storage);
  std::vector<TokenId> ids;
  ids.reserve(valid.size() / 4 + 8);
  run(
      valid, needs_origins_, work,
      [&](const AddedToken& token, const AlignedText&, ByteRange) { ids.push_back(token.id); },
      [&](const AlignedText&, ByteRange, const std::vector<PieceToken>& tokens) {
        for (const PieceToken& token : tokens) ids.push_back(token.id);
      });
  if (add_special_tokens) post_processor_.add_special_ids(ids);
  return ids;
}

std::vector<PlacedToken> TokenizerPipeline::place_tokens(std::string_view text,
                                                         WorkBudget& work) const {
  std::string storage;
  const std::string_view valid = as_valid(text, storage);
  const std::vector<std::size_t> characters = character_indices(valid);
  const auto offsets_of = [&](const AlignedText& aligned, ByteRange range) {
    if (range.empty()) return TextOffsets{};
    const ByteRange origin = aligned.origin(range);
    return TextOffsets{characters[origin.begin], characters[origin.end]};
  };
  std::vector<PlacedToken> placed;
  run(
      valid, true, work,
      [&](const AddedToken& token, const AlignedText& aligned, ByteRange range) {
        placed.push_back({token.id, offsets_of(aligned, range), std::string(aligned.view(range))});
      },
      [&](const AlignedText& aligned, ByteRange piece, const std::vector<PieceToken>& tokens) {
        for (const PieceToken& token : tokens) {
          const ByteRange range{piece.begin + token.begin, piece.begin + token.end};
          placed.push_back({token.id, offsets_of(aligned, range),
                            std::string(vocabulary().token_of(token.id).value_or(""))});
        }
      });
  return placed;
}

Encoding TokenizerPipeline::encode_with_offsets(std::string_view first,
                                                const std::string_view* second,
                                                bool add_special_tokens, WorkBudget& work) const {
  std::vector<PlacedToken> first_tokens = place_tokens(first, work);
  if (second == nullptr) {
    return post_processor_.process(std::move(first_tokens), nullptr, add_special_tokens);
  }
  std::vector<PlacedToken> second_tokens = place_tokens(*second, work);
  return post_processor_.process(std::move(first_tokens), &second_tokens, add_special_tokens);
}

std::optional<std::string_view> TokenizerPipeline::spelling(TokenId id) const {
  if (const AddedToken* token = added_.find(id)) return token->shown;
  return vocabulary().token_of(id);
}

template <class OnToken>
void TokenizerPipeline::for_each_spelling(std::span<const TokenId> ids, bool skip_special_tokens,
                                          const OnToken& on_token) const {
  for (const TokenId id : ids) {
    const AddedToken* added = added_.find(id);
    if (skip_special_tokens && added != nullptr && added->special) continue;
    if (const auto token = added != nullptr ? std::optional<std::string_view>(added->shown)
                                            : vocabulary().token_of(id)) {
      on_token(*token);
    }
  }
}

std::string TokenizerPipeline::decode(std::span<const TokenId> ids,
                                      bool skip_special_tokens) const {
  std::string text;
  if (decodes_byte_level_) {
    // Fast path for the common decoder, without a string per token.
    std::string bytes;
    for_each_spelling(ids, skip_special_tokens,
                      [&](std::string_view token) { append_byte_level(bytes, token); });
    if (unicode::is_valid(bytes)) return bytes;
    unicode::append_lossy(text, bytes);
    return text;
  }
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for_each_spelling(ids, skip_special_tokens,
                    [&](std::string_view token) { tokens.emplace_back(token); });
  decoder_->apply(tokens);
  for (const std::string& token : tokens) text += token;
  return text;
}

std::string_view TokenizerPipeline::lone_text(TokenId id) const {
  if (!lone_texts_) return {};
  return lone_texts_->get(id, [&] {
    if (added_.find(id) != nullptr || !starts_character(id)) return std::string();
    std::string text = decode(std::span(&id, 1), false);
    return text.find(unicode::kReplacement) == std::string::npos ? text : std::string();
  });
}

bool TokenizerPipeline::starts_character(TokenId id) const {
  const auto token = spelling(id);
  if (!token || token->empty()) return false;
  if (decodes_byte_level_) {
    const auto byte = byte_level::byte_of(unicode::decode_at(*token, 0));
    return byte && !unicode::is_continuation(*byte);
  }
  return !token->starts_with("<0x");
}

}  // namespace troupe
