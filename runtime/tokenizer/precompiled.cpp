// SentencePiece's compiled character map: a double-array trie (Darts) from character sequences to
// replacements.

#include <utf8proc.h>

#include <cstring>

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/normalizer.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace troupe {
namespace {

/// Decodes standard base64; nullopt if malformed.
std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  std::uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes.push_back(static_cast<char>(bits >> num_bits));
    }
  }
  return bytes;
}

/// Owns the trie's units and the replacements, stored as consecutive NUL-terminated strings.
class CharacterMap {
 public:
  CharacterMap(std::vector<std::uint32_t> units, std::string replacements)
      : units_(std::move(units)), replacements_(std::move(replacements)) {}

  /// The replacement of the shortest entry that is a prefix of `text`.
  [[nodiscard]] std::optional<std::string_view> replacement(std::string_view text) const {
    std::size_t place = 0;
    if (!step(place, unit(0))) return std::nullopt;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte == 0) break;
      place ^= byte;
      const std::uint32_t at = unit(place);
      if ((at & 0x800000FFu) != byte || !step(place, at)) return std::nullopt;
      if ((at >> 8 & 1) != 0) return text_at(unit(place) & 0x7FFFFFFFu);
    }
    return std::nullopt;
  }

 private:
  [[nodiscard]] std::uint32_t unit(std::size_t place) const {
    return place < units_.size() ? units_[place] : 0;
  }
  /// Follows a unit's offset; false if that leaves the array.
  [[nodiscard]] bool step(std::size_t& place, std::uint32_t at) const {
    place ^= static_cast<std::size_t>(at >> 10) << ((at & 0x200u) >> 6);
    return place < units_.size();
  }
  [[nodiscard]] std::optional<std::string_view> text_at(std::size_t begin) const {
    if (begin >= replacements_.size()) return std::nullopt;
    // Real replacements are a word at most (U+FDFA: 33 bytes).
    constexpr std::size_t kMaxReplacementBytes = 1024;
    const auto rest = std::string_view(replacements_).substr(begin, kMaxReplacementBytes);
    const auto text = rest.substr(0, rest.find('\0'));
    return unicode::is_valid(text) ? std::optional(text) : std::nullopt;
  }

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

class PrecompiledNormalizer : public Normalizer {
 public:
  explicit PrecompiledNormalizer(CharacterMap map) : map_(std::move(map)) {}

  void apply(AlignedText& text, WorkBudget& work) const override {
    const std::string_view old = text.view();
    std::vector<ChangedCharacter> characters;
    const std::size_t max_characters = AlignedText::max_rewritten_bytes(old.size());
    bool is_changed = false;
    for (std::size_t begin = 0; begin < old.size();) {
      const std::size_t end = grapheme_end(old, begin);
      const std::size_t num_before = characters.size();
      is_changed |= map_grapheme(old.substr(begin, end - begin), characters);
      work.charge(end - begin + characters.size() - num_before);
      if (characters.size() > max_characters) throw WorkStopped(WorkStopped::Reason::kTooMuch);
      begin = end;
    }
    if (!is_changed) return;
    TextRewriter rewriter(text, work);
    write_changes(rewriter, old, characters);
    rewriter.finish();
  }

 private:
  static std::size_t grapheme_end(std::string_view text, std::size_t begin) {
    auto current = static_cast<utf8proc_int32_t>(unicode::next(text, begin));
    utf8proc_int32_t state = 0;
    while (begin < text.size()) {
      std::size_t behind = begin;
      const auto following = static_cast<utf8proc_int32_t>(unicode::next(text, behind));
      if (utf8proc_grapheme_break_stateful(current, following, &state)) break;
      current = following;
      begin = behind;
    }
    return begin;
  }

  /// Short graphemes are looked up as a whole, then character by character.
  bool map_grapheme(std::string_view grapheme, std::vector<ChangedCharacter>& out) const {
    constexpr std::size_t kMaxWholeBytes = 5;
    if (grapheme.size() <= kMaxWholeBytes && map_part(grapheme, out)) return true;
    bool is_changed = false;
    for (std::size_t i = 0; i < grapheme.size();) {
      const std::size_t begin = i;
      const char32_t character = unicode::next(grapheme, i);
      if (map_part(grapheme.substr(begin, i - begin), out)) {
        is_changed = true;
      } else {
        out.push_back({character, 0});
      }
    }
    return is_changed;
  }

  bool map_part(std::string_view part, std::vector<ChangedCharacter>& out) const {
    const auto replacement = map_.replacement(part);
    if (!replacement) return false;
    const auto num_old = static_cast<int>(unicode::count(part));
    int num_new = 0;
    for (std::size_t i = 0; i < replacement->size();) {
      out.push_back({unicode::next(*replacement, i), num_new < num_old ? 0 : 1});
      ++num_new;
    }
    if (num_new < num_old && !out.empty()) out.back().change -= num_old - num_new;
    return true;
  }

  CharacterMap map_;
};

}  // namespace

Result<std::unique_ptr<const Normalizer>> make_precompiled(const nlohmann::json& json) {
  ASSIGN_OR_RETURN(const std::string encoded, json_fields::text(json, "precompiled_charsmap"));
  const auto bytes = decode_base64(encoded);
  std::uint32_t trie_bytes = 0;
  if (!bytes || bytes->size() < sizeof trie_bytes) {
    return json_fields::malformed("precompiled_charsmap is not a valid character map");
  }
  std::memcpy(&trie_bytes, bytes->data(), sizeof trie_bytes);
  if (trie_bytes > bytes->size() - sizeof trie_bytes || trie_bytes % 4 != 0) {
    return json_fields::malformed("precompiled_charsmap declares " + std::to_string(trie_bytes) +
                                  " bytes of " + std::to_string(bytes->size()));
  }
  std::vector<std::uint32_t> units(trie_bytes / 4);
  if (trie_bytes > 0) std::memcpy(units.data(), bytes->data() + 4, trie_bytes);
  return std::unique_ptr<const Normalizer>(std::make_unique<PrecompiledNormalizer>(
      CharacterMap(std::move(units), bytes->substr(4 + trie_bytes))));
}

}  // namespace troupe
