#include "runtime/worker/suffix_proposer.hpp"

#include <algorithm>
#include <utility>

#include "runtime/worker/sampler.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxOccurrences = 64;  ///< that are looked at, the latest first
constexpr std::size_t kMaxLengths = 4;       ///< of matches, the longest first

std::uint64_t pair_key(TokenId first, TokenId second) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(first)) << 32 |
         static_cast<std::uint32_t>(second);
}

}  // namespace

void TokenHistory::append(TokenId token) {
  const auto index = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
  before_.push_back(-1);
  if (index == 0) return;
  const auto [place, is_new] =
      last_.try_emplace(pair_key(tokens_[tokens_.size() - 2], token), index);
  if (!is_new) before_.back() = std::exchange(place->second, index);
}

void TokenHistory::find(std::span<const TokenId> text, std::size_t max_length,
                        std::vector<Occurrence>& found) const {
  found.clear();
  if (text.size() < 2) return;
  const auto last = last_.find(pair_key(text[text.size() - 2], text.back()));
  if (last == last_.end()) return;
  std::size_t num_seen = 0;
  for (std::int32_t at = last->second; at >= 0 && num_seen < kMaxOccurrences;
       at = before_[static_cast<std::size_t>(at)], ++num_seen) {
    const auto next = static_cast<std::size_t>(at) + 1;
    if (next == tokens_.size() || tokens_[next] == kNoToken) continue;
    const std::size_t most = std::min({max_length, text.size(), next});
    std::size_t length = 2;
    while (length < most && tokens_[next - 1 - length] == text[text.size() - 1 - length]) ++length;
    found.push_back({next, length});
  }
}

std::vector<TokenId> SuffixProposer::propose(RequestId id, std::span<const TokenId> tokens,
                                             std::size_t num_prompt_tokens,
                                             std::size_t max_drafts) {
  Live& live = live_[value(id)];
  live.num_prompt_tokens = num_prompt_tokens;
  if (live.history.tokens().size() > tokens.size()) live.history = {};
  for (const TokenId token : tokens.subspan(live.history.tokens().size()))
    live.history.append(token);
  Drafts best;
  for (const TokenHistory* const history : {&live.history, &recent_, &older_})
    search(*history, tokens, max_drafts, best);
  return std::move(best.tokens);
}

void SuffixProposer::search(const TokenHistory& history, std::span<const TokenId> text,
                            std::size_t max_drafts, Drafts& best) {
  history.find(text, static_cast<std::size_t>(options_.max_depth), found_);
  std::vector<std::size_t> lengths;
  for (const TokenHistory::Occurrence& place : found_)
    if (std::ranges::find(lengths, place.length) == lengths.end()) lengths.push_back(place.length);
  std::ranges::sort(lengths, std::greater());
  if (lengths.size() > kMaxLengths) lengths.resize(kMaxLengths);
  for (const std::size_t length : lengths) {
    Drafts drafts = follow(history, length, max_drafts);
    if (drafts.score > best.score) best = std::move(drafts);
  }
}

SuffixProposer::Drafts SuffixProposer::follow(const TokenHistory& history, std::size_t length,
                                              std::size_t max_drafts) {
  const std::span<const TokenId> tokens = history.tokens();
  const auto most =
      static_cast<std::size_t>(static_cast<double>(length) * options_.max_spec_factor);
  max_drafts = std::min(max_drafts, most);
  places_.clear();
  for (const TokenHistory::Occurrence& place : found_)
    if (place.length >= length) places_.push_back(place.next);
  Drafts drafts;
  double probability = 1;
  while (drafts.tokens.size() < max_drafts && !places_.empty()) {
    // The latest place comes first, and wins among equals.
    TokenId chosen = kNoToken;
    std::ptrdiff_t count = 0;
    for (const std::size_t place : places_) {
      if (tokens[place] == kNoToken) continue;
      const auto same = std::ranges::count_if(
          places_, [&](std::size_t other) { return tokens[other] == tokens[place]; });
      if (same <= count) continue;
      count = same;
      chosen = tokens[place];
    }
    if (chosen == kNoToken) break;
    probability *= static_cast<double>(count) / static_cast<double>(places_.size());
    if (probability < options_.min_token_prob) break;
    drafts.tokens.push_back(chosen);
    drafts.score += probability;
    std::erase_if(places_, [&](std::size_t& place) {
      return tokens[place] != chosen || ++place == tokens.size();
    });
  }
  return drafts;
}

void SuffixProposer::finish(RequestId id) {
  const auto ended = live_.extract(value(id));
  if (ended.empty() || options_.max_cached_requests == 0) return;
  const std::span<const TokenId> tokens = ended.mapped().history.tokens();
  if (tokens.size() <= ended.mapped().num_prompt_tokens) return;
  for (const TokenId token : tokens.subspan(ended.mapped().num_prompt_tokens))
    recent_.append(token);
  recent_.append(kNoToken);
  if (++num_recent_ < (options_.max_cached_requests + 1) / 2) return;
  older_ = std::exchange(recent_, {});
  num_recent_ = 0;
}

}  // namespace troupe
