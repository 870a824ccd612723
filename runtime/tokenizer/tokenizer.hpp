#pragma once
// Text to token ids and back, from a folder in Hugging Face format (tokenizer.json,
// tokenizer_config.json).

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "messages/ids.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/work_budget.hpp"

namespace troupe {

class TokenizerPipeline;

/// Half-open range of Unicode code points of the encoded text.
struct TextOffsets {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const TextOffsets&) const = default;
};

/// One encoded text, or a pair. All vectors have one entry per token.
struct Encoding {
  std::vector<TokenId> ids;
  std::vector<TextOffsets> offsets;              ///< {0, 0} for tokens added by the template
  std::vector<int> type_ids;                     ///< segment of each token, set by the template
  std::vector<bool> special_tokens_mask;         ///< true for tokens added by the template
  std::vector<std::optional<int>> sequence_ids;  ///< 0 or 1: which text; nullopt for added tokens
};

/// The special tokens by role, as far as the model defines them.
struct TokenRoles {
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  std::optional<std::string> unk;
  std::optional<std::string> pad;
};

/// Encodes and decodes byte for byte as the Hugging Face `tokenizers` library 0.23 does on the same
/// file, with truncation and padding off.
///
/// Constant after load, and thread-safe. Unsupported parts of a tokenizer.json are an error at load
/// that names the component; decoding never fails. Encoding fails if its WorkLimits stop it
/// (kAborted, kTimeout), or if the file's components do much more work than real ones
/// (kInvalidArgument): grow the text 64-fold, or backtrack without bound. Invalid UTF-8 is replaced
/// by U+FFFD, one for each maximal invalid part, so a text is always encoded as a client would
/// display it.
class Tokenizer {
 public:
  /// Loads tokenizer.json (required), tokenizer_config.json and special_tokens_map.json (optional).
  /// Errors: kNotFound, kIo, kCorrupt (malformed), kUnsupported (names the component).
  static Result<std::shared_ptr<const Tokenizer>> load(const std::filesystem::path& folder);
  /// As above from the files' contents; `config_json` may be empty. Errors: kCorrupt, kUnsupported.
  static Result<std::shared_ptr<const Tokenizer>> from_json(std::string_view tokenizer_json,
                                                            std::string_view config_json = {});
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// The ids of `text`. Added tokens in the text are always recognised; `add_special_tokens`
  /// applies the post-processor's template (start token etc.).
  Result<std::vector<TokenId>> encode(std::string_view text, bool add_special_tokens,
                                      const WorkLimits& limits = {}) const;
  /// As encode, with offsets, type ids and masks. Slower.
  Result<Encoding> encode_with_offsets(std::string_view text, bool add_special_tokens,
                                       const WorkLimits& limits = {}) const;
  /// Encodes two texts together, joined by the template for pairs.
  Result<Encoding> encode_pair(std::string_view first, std::string_view second,
                               bool add_special_tokens, const WorkLimits& limits = {}) const;

  /// The text of `ids`. Ids outside the vocabulary decode to nothing; invalid UTF-8 becomes U+FFFD.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

  /// The vocabulary's form of a token ("Ġthe", "▁the", "<0x0A>"); nullopt outside the vocabulary.
  [[nodiscard]] std::optional<std::string_view> id_to_token(TokenId id) const;
  [[nodiscard]] std::optional<TokenId> token_to_id(std::string_view token) const;
  /// Number of distinct tokens, including added ones.
  [[nodiscard]] std::size_t vocab_size() const noexcept;
  /// Highest id + 1: the size of a table indexed by id.
  [[nodiscard]] std::size_t id_limit() const noexcept;
  /// Whether this is an added token marked special, which decoding can skip.
  [[nodiscard]] bool is_special(TokenId id) const noexcept;
  /// Whether this is an added token, special or not.
  [[nodiscard]] bool is_added(TokenId id) const noexcept;

  /// Whether the token does not continue a character that an earlier token began: the text before
  /// it decodes the same with and without it.
  [[nodiscard]] bool starts_character(TokenId id) const;
  /// The text that the token adds after any text of whole characters, if that is independent of the
  /// text and consists of whole characters; otherwise empty. Valid during the tokenizer's lifetime.
  [[nodiscard]] std::string_view lone_text(TokenId id) const;

  [[nodiscard]] std::optional<TokenId> bos_id() const;
  [[nodiscard]] std::optional<TokenId> eos_id() const;
  [[nodiscard]] std::optional<TokenId> unk_id() const;
  [[nodiscard]] std::optional<TokenId> pad_id() const;

 private:
  Tokenizer(std::unique_ptr<const TokenizerPipeline> pipeline, TokenRoles roles);

  std::unique_ptr<const TokenizerPipeline> pipeline_;
  TokenRoles roles_;
};

}  // namespace troupe
