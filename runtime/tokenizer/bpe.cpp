#include "runtime/tokenizer/bpe.hpp"

#include <algorithm>
#include <atomic>
#include <queue>

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/byte_level.hpp"
#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/unicode.hpp"
#include "runtime/tokenizer/word_cache.hpp"

namespace troupe {
namespace {

using json_fields::Json;

constexpr std::string_view kMark = "\u2581";
/// Up to this size a scan over all pairs is faster than a heap.
constexpr std::size_t kMaxScannedSymbols = 40;

std::string byte_token(unsigned byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

std::uint64_t next_cache_key() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

BpeModel::BpeModel(Vocabulary vocabulary, BpeOptions options, PairTable merges)
    : TokenModel(std::move(vocabulary)),
      options_(std::move(options)),
      merges_(std::move(merges)),
      cache_key_(next_cache_key()) {
  if (options_.unk_token) unk_id_ = this->vocabulary().id_of(*options_.unk_token);
  for (unsigned b = 0; b < 256; ++b) {
    const auto byte = static_cast<unsigned char>(b);
    byte_ids_[b] = this->vocabulary().id_of(byte_level::spelling(byte)).value_or(-1);
    fallback_ids_[b] = this->vocabulary().id_of(byte_token(b)).value_or(-1);
  }
  if (options_.takes_bytes && options_.ignore_merges) {
    for (std::size_t id = 0; id < this->vocabulary().id_limit(); ++id) {
      const auto token = this->vocabulary().token_of(static_cast<TokenId>(id));
      if (!token) continue;
      if (auto bytes = byte_level::bytes_of(*token)) {
        words_.emplace(std::move(*bytes), static_cast<TokenId>(id));
      }
    }
  }
  find_mark_joiners();
}

void BpeModel::find_mark_joiners() {
  can_split_at_marks_ = !options_.takes_bytes && !options_.ignore_merges &&
                        options_.continuing_subword_prefix.empty() &&
                        options_.end_of_word_suffix.empty() &&
                        vocabulary().id_of(kMark).has_value();
  if (!can_split_at_marks_) return;
  merges_.for_each([&](const PairTable::Merge& merge) {
    const std::string_view product = *vocabulary().token_of(merge.product);
    std::size_t mark = product.find(kMark);
    for (; mark != std::string_view::npos; mark = product.find(kMark, mark + 1)) {
      std::size_t before = mark;
      if (mark > 0) mark_joiners_.insert(unicode::previous(product, before));
    }
  });
}

bool BpeModel::splits_before_mark(std::string_view piece, std::size_t mark) const {
  std::size_t begin = mark;
  const char32_t before = unicode::previous(piece, begin);
  // An unknown character may be fused with what follows it.
  return !mark_joiners_.contains(before) &&
         vocabulary().id_of(piece.substr(begin, mark - begin)).has_value();
}

void BpeModel::tokenize(std::string_view piece, std::vector<PieceToken>& tokens,
                        WorkBudget& work) const {
  if (!can_split_at_marks_) return tokenize_word(piece, 0, tokens, work);
  std::size_t begin = 0;
  for (std::size_t mark = piece.find(kMark, 1); mark != std::string_view::npos;
       mark = piece.find(kMark, mark + kMark.size())) {
    if (!splits_before_mark(piece, mark)) continue;
    tokenize_word(piece.substr(begin, mark - begin), static_cast<std::uint32_t>(begin), tokens,
                  work);
    begin = mark;
  }
  tokenize_word(piece.substr(begin), static_cast<std::uint32_t>(begin), tokens, work);
}

std::optional<TokenId> BpeModel::whole_word(std::string_view word) const {
  if (!options_.ignore_merges) return std::nullopt;
  if (!options_.takes_bytes) return vocabulary().id_of(word);
  const auto it = words_.find(word);
  if (it == words_.end()) return std::nullopt;
  return it->second;
}

void BpeModel::tokenize_word(std::string_view word, std::uint32_t offset,
                             std::vector<PieceToken>& tokens, WorkBudget& work) const {
  work.charge_bytes(word.size());
  WordCache::Entry* place = nullptr;
  if (word.size() <= WordCache::kMaxWordBytes) {
    place = &WordCache::instance().place_of(cache_key_, word);
    if (place->holds(cache_key_, word)) {
      std::uint32_t begin = offset;
      for (std::size_t i = 0; i < place->num_tokens; ++i) {
        const std::uint32_t end = offset + place->ends[i];
        tokens.push_back({place->ids[i], begin, end});
        begin = end;
      }
      return;
    }
  }
  const std::size_t first = tokens.size();
  if (const auto id = whole_word(word)) {
    tokens.push_back({*id, offset, offset + static_cast<std::uint32_t>(word.size())});
  } else {
    static thread_local std::vector<Symbol> symbols;
    symbols.clear();
    merge_word(word, symbols, work);
    std::uint32_t begin = offset;
    for (const Symbol& symbol : symbols) {
      tokens.push_back({symbol.id, begin, begin + symbol.num_bytes});
      begin += symbol.num_bytes;
    }
  }
  if (place != nullptr && tokens.size() - first <= WordCache::kMaxTokens) {
    WordCache::store(*place, cache_key_, word, std::span(tokens).subspan(first), offset);
  }
}

void BpeModel::merge_word(std::string_view word, std::vector<Symbol>& symbols,
                          WorkBudget& work) const {
  work.charge(word.size());
  if (options_.takes_bytes) {
    add_byte_symbols(word, symbols);
  } else {
    add_character_symbols(word, symbols);
  }
  if (symbols.size() <= kMaxScannedSymbols) {
    merge_few(symbols);
  } else {
    merge_many(symbols, work);
  }
}

void BpeModel::add_byte_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
  bool after_unknown = false;
  for (const char c : word) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      symbols.push_back({id, 1});
    } else if (after_unknown && options_.fuse_unk) {
      ++symbols.back().num_bytes;
    } else if (unk_id_) {
      symbols.push_back({*unk_id_, 1});
    }
    after_unknown = id < 0 && unk_id_.has_value();
  }
}

bool BpeModel::add_fallback_symbols(std::string_view spelled, std::vector<Symbol>& symbols) const {
  const auto id_of = [&](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
  if (std::any_of(spelled.begin(), spelled.end(), [&](char c) { return id_of(c) < 0; })) {
    return false;
  }
  for (const char c : spelled) symbols.push_back({id_of(c), 1});
  return true;
}

void BpeModel::add_character_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
  // An unknown run is written when the next known character comes, so that runs can be fused; byte
  // tokens do not end it, as in the reference library.
  std::optional<Symbol> unknown;
  std::string decorated;
  for (std::size_t i = 0; i < word.size();) {
    const std::size_t begin = i;
    i += unicode::char_bytes(static_cast<unsigned char>(word[i]));
    const auto num_bytes = static_cast<std::uint32_t>(i - begin);
    std::string_view spelled = word.substr(begin, num_bytes);
    const bool has_prefix = begin > 0 && !options_.continuing_subword_prefix.empty();
    const bool has_suffix = i == word.size() && !options_.end_of_word_suffix.empty();
    if (has_prefix || has_suffix) {
      decorated.assign(has_prefix ? options_.continuing_subword_prefix : "");
      decorated.append(spelled).append(has_suffix ? options_.end_of_word_suffix : "");
      spelled = decorated;
    }
    if (const auto id = vocabulary().id_of(spelled)) {
      if (unknown) symbols.push_back(*std::exchange(unknown, std::nullopt));
      symbols.push_back({*id, num_bytes});
      continue;
    }
    if (options_.byte_fallback && add_fallback_symbols(spelled, symbols)) continue;
    if (!unk_id_) continue;
    if (unknown && options_.fuse_unk) {
      unknown->num_bytes += num_bytes;
    } else {
      if (unknown) symbols.push_back(*unknown);
      unknown = Symbol{*unk_id_, num_bytes};
    }
  }
  if (unknown) symbols.push_back(*unknown);
}

void BpeModel::merge_few(std::vector<Symbol>& symbols) const {
  std::array<PairTable::Merge, kMaxScannedSymbols> merges;  // of each symbol with the next one
  std::size_t num_symbols = symbols.size();
  for (std::size_t i = 0; i + 1 < num_symbols; ++i) {
    merges[i] = merges_.merge(symbols[i].id, symbols[i + 1].id);
  }
  while (num_symbols > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < num_symbols; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == PairTable::kNoRank) break;
    symbols[best].id = merges[best].product;
    symbols[best].num_bytes += symbols[best + 1].num_bytes;
    --num_symbols;
    for (std::size_t i = best + 1; i < num_symbols; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i] = merges[i + 1];
    }
    if (best + 1 < num_symbols) {
      merges[best] = merges_.merge(symbols[best].id, symbols[best + 1].id);
    }
    if (best > 0) merges[best - 1] = merges_.merge(symbols[best - 1].id, symbols[best].id);
  }
  symbols.resize(num_symbols);
}

void BpeModel::merge_many(std::vector<Symbol>& symbols, WorkBudget& work) const {
  // A linked list over the symbols, and a heap of merges keyed by rank, then position. An entry is
  // stale if the pair at its position has changed since.
  constexpr std::uint32_t kNone = 0xFFFFFFFFu;
  struct Node {
    std::uint32_t previous;
    std::uint32_t next;
    PairTable::Merge merge;  ///< with the next one
  };
  const auto num_symbols = static_cast<std::uint32_t>(symbols.size());
  std::vector<Node> nodes(num_symbols);
  std::vector<std::uint64_t> initial;
  initial.reserve(num_symbols);
  const auto heap_key = [](std::uint32_t rank, std::uint32_t place) {
    return std::uint64_t{rank} << 32 | place;
  };
  for (std::uint32_t i = 0; i < num_symbols; ++i) {
    nodes[i].previous = i == 0 ? kNone : i - 1;
    nodes[i].next = i + 1 == num_symbols ? kNone : i + 1;
    if (i + 1 == num_symbols) break;
    nodes[i].merge = merges_.merge(symbols[i].id, symbols[i + 1].id);
    if (nodes[i].merge.rank != PairTable::kNoRank) {
      initial.push_back(heap_key(nodes[i].merge.rank, i));
    }
  }
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> heap(
      std::greater<>(), std::move(initial));
  const auto update = [&](std::uint32_t i) {
    const std::uint32_t next = nodes[i].next;
    nodes[i].merge =
        next == kNone ? PairTable::Merge() : merges_.merge(symbols[i].id, symbols[next].id);
    if (nodes[i].merge.rank != PairTable::kNoRank) heap.push(heap_key(nodes[i].merge.rank, i));
  };
  while (!heap.empty()) {
    work.charge();
    const std::uint64_t top = heap.top();
    heap.pop();
    const auto i = static_cast<std::uint32_t>(top);
    if (nodes[i].merge.rank != static_cast<std::uint32_t>(top >> 32)) continue;
    const std::uint32_t gone = nodes[i].next;
    symbols[i].id = nodes[i].merge.product;
    symbols[i].num_bytes += symbols[gone].num_bytes;
    symbols[gone].num_bytes = 0;
    nodes[gone].merge = PairTable::Merge();
    nodes[i].next = nodes[gone].next;
    if (nodes[i].next != kNone) nodes[nodes[i].next].previous = i;
    update(i);
    if (nodes[i].previous != kNone) update(nodes[i].previous);
  }
  std::erase_if(symbols, [](const Symbol& symbol) { return symbol.num_bytes == 0; });
}

namespace {

Result<std::pair<std::string, std::string>> read_merge(const Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (!merge.is_string()) return json_fields::malformed("a merge is neither a pair nor a string");
  const auto text = merge.get<std::string>();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    return json_fields::malformed("the merge \"" + text + "\" is not two tokens");
  }
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

Result<PairTable> read_merges(const Json& json, const Vocabulary& vocabulary,
                              const BpeOptions& options) {
  ASSIGN_OR_RETURN(const Json* list, json_fields::array(json, "merges"));
  PairTable merges(list->size());
  const auto id_of = [&](const std::string& token) -> Result<TokenId> {
    if (const auto id = vocabulary.id_of(token)) return *id;
    return json_fields::malformed("a merge needs the token \"" + token +
                                  "\", which is not in the vocabulary");
  };
  std::uint32_t rank = 0;
  for (const Json& entry : *list) {
    // Merge files start with a version line.
    if (entry.is_string() && entry.get_ref<const std::string&>().starts_with("#version")) continue;
    ASSIGN_OR_RETURN(const auto pair, read_merge(entry));
    const std::string& prefix = options.continuing_subword_prefix;
    const bool drops_prefix = pair.second.size() >= prefix.size();
    ASSIGN_OR_RETURN(const TokenId left, id_of(pair.first));
    ASSIGN_OR_RETURN(const TokenId right, id_of(pair.second));
    ASSIGN_OR_RETURN(const TokenId product,
                     id_of(pair.first + pair.second.substr(drops_prefix ? prefix.size() : 0)));
    merges.add(left, right, {rank++, product});
  }
  return merges;
}

}  // namespace

Result<LoadedTokenModel> make_bpe(const Json& json, bool pieces_are_bytes) {
  if (const auto dropout = json.find("dropout");
      dropout != json.end() && !dropout->is_null() && *dropout != 0.0) {
    return json_fields::unsupported("BPE dropout");
  }
  BpeOptions options;
  ASSIGN_OR_RETURN(options.unk_token, json_fields::optional_text(json, "unk_token"));
  ASSIGN_OR_RETURN(const auto prefix,
                   json_fields::optional_text(json, "continuing_subword_prefix"));
  ASSIGN_OR_RETURN(const auto suffix, json_fields::optional_text(json, "end_of_word_suffix"));
  options.continuing_subword_prefix = prefix.value_or("");
  options.end_of_word_suffix = suffix.value_or("");
  ASSIGN_OR_RETURN(options.fuse_unk, json_fields::boolean(json, "fuse_unk", false));
  ASSIGN_OR_RETURN(options.byte_fallback, json_fields::boolean(json, "byte_fallback", false));
  ASSIGN_OR_RETURN(options.ignore_merges, json_fields::boolean(json, "ignore_merges", false));
  options.takes_bytes = pieces_are_bytes && !options.byte_fallback && prefix.value_or("").empty() &&
                        suffix.value_or("").empty();
  ASSIGN_OR_RETURN(Vocabulary vocabulary, read_vocabulary(json));
  if (options.unk_token && !vocabulary.id_of(*options.unk_token)) options.unk_token.reset();
  ASSIGN_OR_RETURN(PairTable merges, read_merges(json, vocabulary, options));
  const bool takes_bytes = options.takes_bytes;
  return LoadedTokenModel{
      std::make_unique<BpeModel>(std::move(vocabulary), std::move(options), std::move(merges)),
      takes_bytes};
}

}  // namespace troupe
