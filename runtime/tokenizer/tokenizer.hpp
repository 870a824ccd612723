#pragma once
// Text to token ids and back, from a folder in the Hugging Face form (tokenizer.json,
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

/// Half-open range of Unicode code points of the text that was encoded.
struct TextOffsets {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const TextOffsets&) const = default;
};

/// One encoded text, or a pair of them. All vectors have one entry per token.
struct Encoding {
  std::vector<TokenId> ids;
  std::vector<TextOffsets> offsets;              ///< {0, 0} for tokens that the template added
  std::vector<int> type_ids;                     ///< segment of each token, as the template says
  std::vector<bool> special_tokens_mask;         ///< true where the template added the token
  std::vector<std::optional<int>> sequence_ids;  ///< 0 or 1: which text; none for added tokens
};

/// The texts of the tokens that have a role of their own, as far as the model names them.
struct TokenRoles {
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  std::optional<std::string> unk;
  std::optional<std::string> pad;
};

/// Encodes and decodes byte for byte as the Hugging Face `tokenizers` library 0.23 does on the same
/// file, with truncation and padding off.
///
/// Constant after load: every method may be called from any thread. What is not supported in a
/// tokenizer.json is an error at load that names the component; decoding never fails. Encoding
/// fails where its WorkLimits end it (kAborted, kTimeout), and where the file's components do much
/// more to a text than real ones (kInvalidArgument): grow it 64-fold, or backtrack without end.
/// Bytes of a text that are not valid UTF-8 are taken as U+FFFD, one for each maximal invalid part,
/// so that a text is always encoded as what a client would see of it.
class Tokenizer {
 public:
  /// Loads tokenizer.json (required), tokenizer_config.json and special_tokens_map.json (each
  /// optional). Errors: kNotFound, kIo, kCorrupt (what is malformed), kUnsupported (the component's
  /// name).
  static Result<std::shared_ptr<const Tokenizer>> load(const std::filesystem::path& folder);
  /// The same from the files' texts; `config_json` may be empty. Errors: kCorrupt, kUnsupported.
  static Result<std::shared_ptr<const Tokenizer>> from_json(std::string_view tokenizer_json,
                                                            std::string_view config_json = {});
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// The ids of `text`. Added tokens in the text are recognised in any case; `add_special_tokens`
  /// runs the post-processor's template (start token and so on).
  Result<std::vector<TokenId>> encode(std::string_view text, bool add_special_tokens,
                                      const WorkLimits& limits = {}) const;
  /// The same with offsets, type ids and masks. Slower than encode.
  Result<Encoding> encode_with_offsets(std::string_view text, bool add_special_tokens,
                                       const WorkLimits& limits = {}) const;
  /// Two texts encoded together, joined as the template for pairs says.
  Result<Encoding> encode_pair(std::string_view first, std::string_view second,
                               bool add_special_tokens, const WorkLimits& limits = {}) const;

  /// The text of `ids`. Ids outside the vocabulary decode to nothing; bytes that make no character
  /// become U+FFFD.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

  /// The vocabulary's own form of a token ("Ġthe", "▁the", "<0x0A>"); none outside the vocabulary.
  [[nodiscard]] std::optional<std::string_view> id_to_token(TokenId id) const;
  [[nodiscard]] std::optional<TokenId> token_to_id(std::string_view token) const;
  /// Number of distinct tokens, added ones included.
  [[nodiscard]] std::size_t vocab_size() const noexcept;
  /// Highest id + 1: what a table indexed by id needs.
  [[nodiscard]] std::size_t id_limit() const noexcept;
  /// True for added tokens marked special: those that decoding can skip.
  [[nodiscard]] bool is_special(TokenId id) const noexcept;
  /// True for every added token, special or not.
  [[nodiscard]] bool is_added(TokenId id) const noexcept;

  /// True if the token does not go on with a character that an earlier token began: text before it
  /// decodes the same with and without it.
  [[nodiscard]] bool starts_character(TokenId id) const;
  /// What the token adds to a text of whole characters, whatever that is, if that is certain and
  /// whole characters, too; otherwise empty. Valid as long as the tokenizer.
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
