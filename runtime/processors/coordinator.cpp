#include "runtime/processors/coordinator.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>
#include <variant>

#include "runtime/base/check.hpp"
#include "runtime/base/hash.hpp"

namespace troupe {
namespace {

/// vLLM's weight for waiting requests if the cache is more than half full.
constexpr double kFullCacheWeight = 6;
constexpr double kHalfFull = 0.5;

std::uint64_t hash_of(std::string_view bytes) {
  const std::array<std::uint8_t, 16> digest = xxh3_128(bytes);
  std::uint64_t hash = 0;
  std::memcpy(&hash, digest.data(), sizeof hash);
  return hash;
}

/// The hash of a piece, chained with the previous ones.
std::uint64_t chain(std::uint64_t before, std::string_view piece) {
  std::array<char, sizeof before + Coordinator::kPieceBytes> bytes;
  std::memcpy(bytes.data(), &before, sizeof before);
  std::memcpy(bytes.data() + sizeof before, piece.data(), piece.size());
  return hash_of({bytes.data(), sizeof before + piece.size()});
}

/// The parts of a prompt that must be equal, and the text that is compared piece by piece.
struct PromptBytes {
  std::string head;
  std::string_view body;
};

PromptBytes bytes_of(const GenerateRequest& request) {
  PromptBytes bytes{.head = request.cache_salt, .body = {}};
  if (request.lora) bytes.head.append(1, '\0').append(request.lora->name);
  if (const auto* text = std::get_if<TextPrompt>(&request.prompt)) {
    bytes.body = text->text;
  } else if (const auto* tokens = std::get_if<TokensPrompt>(&request.prompt)) {
    bytes.body = {reinterpret_cast<const char*>(tokens->token_ids.data()),
                  tokens->token_ids.size() * sizeof(TokenId)};
  } else {
    const auto& chat = std::get<ChatPrompt>(request.prompt);
    for (const std::string* part : {&chat.tools_json, &chat.documents_json,
                                    &chat.template_kwargs_json, &chat.chat_template}) {
      bytes.head.append(1, '\0').append(*part);
    }
    bytes.body = chat.messages_json;
  }
  return bytes;
}

/// Hashes of the whole pieces at the beginning of the prompt.
std::vector<std::uint64_t> pieces_of(const PromptBytes& bytes) {
  const std::size_t count =
      std::min(bytes.body.size() / Coordinator::kPieceBytes, Coordinator::kMaxPieces);
  std::vector<std::uint64_t> pieces(count);
  std::uint64_t before = hash_of(bytes.head);
  for (std::size_t i = 0; i < count; ++i) {
    before =
        chain(before, bytes.body.substr(i * Coordinator::kPieceBytes, Coordinator::kPieceBytes));
    pieces[i] = before;
  }
  return pieces;
}

}  // namespace

Coordinator::Coordinator(std::size_t num_groups)
    : Coordinator(std::vector<GroupRole>(num_groups, GroupRole::kBoth), 0) {}

Coordinator::Coordinator(std::vector<GroupRole> roles, std::int64_t min_split_tokens)
    : roles_(std::move(roles)), min_split_tokens_(min_split_tokens), groups_(roles_.size()) {}

Coordinator::Route Coordinator::route(const GenerateRequest& request, const Placement& placement,
                                      std::span<const Candidate> candidates, bool may_split) {
  CHECK(!candidates.empty());
  if (groups_.size() == 1) return {};
  const PromptBytes bytes = bytes_of(request);
  const Known known{pieces_of(bytes), request.lora ? request.lora->int_id : 0};
  std::vector<Candidate> prefill;
  std::vector<Candidate> decode;
  for (const Candidate& candidate : candidates)
    (roles_[candidate.group] == GroupRole::kPrefill ? prefill : decode).push_back(candidate);
  // A client that names a group gets it.
  const bool takes_any = decode.empty() || placement.data_parallel_rank.has_value();
  Route route{.group = choose(placement, known, takes_any ? candidates : decode)};
  if (may_split && !takes_any && !prefill.empty()) {
    const std::size_t num_known = num_known_pieces(route.group, known.pieces);
    const std::size_t num_bytes =
        bytes.body.size() + (num_known == 0 ? bytes.head.size() : 0) - num_known * kPieceBytes;
    if (static_cast<std::int64_t>(num_bytes / kBytesPerToken) >= min_split_tokens_)
      route = {.group = choose({}, known, prefill), .prefill_only = true};
  }
  Group& group = groups_[route.group];
  group.waiting += request.params.n;  // until the group reports its own numbers
  for (const std::uint64_t piece : known.pieces) group.pieces.put(piece, {});
  if (known.adapter != 0) group.adapters.put(known.adapter, {});
  if (!placement.session_id.empty() && !route.prefill_only)
    sessions_.put(placement.session_id, route.group);
  return route;
}

std::size_t Coordinator::num_known_pieces(std::size_t group,
                                          std::span<const std::uint64_t> pieces) const {
  std::size_t count = 0;
  while (count < pieces.size() && groups_[group].pieces.find(pieces[count]) != nullptr) ++count;
  return count;
}

std::size_t Coordinator::choose(const Placement& placement, const Known& request,
                                std::span<const Candidate> candidates) {
  const auto takes = [&](std::size_t group) {
    return std::any_of(candidates.begin(), candidates.end(),
                       [&](const Candidate& candidate) { return candidate.group == group; });
  };
  if (placement.data_parallel_rank) {
    const auto asked = static_cast<std::size_t>(*placement.data_parallel_rank);
    if (takes(asked)) return asked;
  }
  if (!placement.session_id.empty()) {
    const std::size_t* const last = sessions_.find(placement.session_id);
    if (last != nullptr && takes(*last)) return *last;
  }
  const std::size_t first = turn_++ % candidates.size();
  std::size_t best = first;
  double least = score(candidates[first], request);
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    const std::size_t next = (first + i) % candidates.size();
    const double its = score(candidates[next], request);
    if (its >= least) continue;
    best = next;
    least = its;
  }
  return candidates[best].group;
}

double Coordinator::score(const Candidate& candidate, const Known& request) const {
  const Group& group = groups_[candidate.group];
  std::int32_t locality = 0;
  for (const std::uint64_t piece : request.pieces) {
    if (locality == kMaxLocality || group.pieces.find(piece) == nullptr) break;
    ++locality;
  }
  if (request.adapter != 0 && group.adapters.find(request.adapter) != nullptr)
    locality += kAdapterLocality;
  const double load = std::max<double>(candidate.num_in_flight, group.waiting + group.running);
  const double crowding =
      group.waiting * kFullCacheWeight * std::max(0.0, group.kv_cache_usage - kHalfFull);
  return load + crowding - locality;
}

void Coordinator::observe(std::size_t group, const SchedulerStats& stats) {
  groups_[group].waiting = stats.num_waiting_reqs;
  groups_[group].running = stats.num_running_reqs;
  groups_[group].kv_cache_usage = stats.kv_cache_usage;
}

void Coordinator::forget(std::size_t group) { groups_[group] = Group(); }

}  // namespace troupe
