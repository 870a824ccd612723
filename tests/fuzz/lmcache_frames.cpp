// Arbitrary bytes from a client of the cache server, from a server to our client, replies of
// LMCache's server of several processes, replies and orders of its controller, and questions of its
// lookup clients; and KV events of another server.
//
// What the server answers does not depend on the pieces in which the bytes come.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/cache_server/lm_session.hpp"
#include "runtime/kv_events/cached_prompts.hpp"
#include "runtime/kv_transfer/lmcache/cache_engine_key.hpp"
#include "runtime/kv_transfer/lmcache/controller_messages.hpp"
#include "runtime/kv_transfer/lmcache/lookup_server.hpp"
#include "runtime/kv_transfer/lmcache/mp_messages.hpp"
#include "runtime/kv_transfer/lmcache/remote_metadata.hpp"

namespace {

std::string answers(std::string_view bytes, std::size_t piece) {
  using namespace troupe;
  Registry registry;
  LmMetrics metrics(registry);
  const ClientTokens tokens;
  CacheStore store({.total = {1 << 20, 0}, .max_value_bytes = 1 << 16}, nullptr, registry);
  LmSession session(store, tokens, metrics, [](const CacheKey&) { std::abort(); });
  std::string out;
  while (!bytes.empty() && session.problem().empty()) {
    const auto input = session.input();
    if (input.empty()) std::abort();
    const std::size_t count = std::min({bytes.size(), input.size(), piece});
    std::copy_n(bytes.data(), count, input.data());
    bytes.remove_prefix(count);
    session.received(count);
    while (true) {
      const LmSession::Output output = session.output();
      const auto part = output.head.empty() ? output.body : output.head;
      if (part.empty()) break;
      const std::size_t size = std::min(part.size(), piece);
      out.append(part.data(), size);
      session.sent(size);
    }
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe::lmcache;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (answers(bytes, bytes.size() + 1) != answers(bytes, 7)) std::abort();
  if (size >= kLmReplyBytes) {
    const auto head = std::span<const char, kLmReplyBytes>(bytes.data(), kLmReplyBytes);
    const auto reply = parse_lm_reply(head);
    if (reply.ok() && !std::ranges::equal(pack_lm_reply(*reply), head)) std::abort();
  }
  if (const auto metadata = parse_remote_metadata(bytes);
      metadata.ok() && pack_remote_metadata(*metadata) != bytes)
    std::abort();
  if (const auto key = parse_cache_engine_key(bytes);
      key.ok() && parse_cache_engine_key(key->text()).value() != *key)
    std::abort();
  const MpReply reply{1, 16, std::string(bytes)};
  (void)mp_slots(reply);
  (void)mp_pool(reply);
  (void)mp_texts(reply);
  (void)mp_integer(reply);
  troupe::CachedPrompts cached;
  if (cached.apply(bytes).ok()) (void)cached.prompts(4);
  (void)parse_controller_reply(bytes);
  ChunkBoard board(ChunkHasher(ChunkHashAlgorithm::kBuiltin, {}, 2), /*signed_hashes=*/true);
  LastClear last_clear;
  if (const auto order = parse_controller_order(bytes); order.ok())
    (void)answer_controller_order(*order, 0, board, last_clear, {}, std::chrono::seconds(1));
  std::vector<std::string> frames(4);
  for (std::size_t i = 0; i < frames.size(); ++i)
    frames[i] = bytes.substr(size * i / 4, size * (i + 1) / 4 - size * i / 4);
  (void)answer_lookup(frames, board);
  (void)answer_async_lookup(bytes, board);
  (void)parse_mp_reply(
      {std::string(bytes.substr(0, size / 2)), std::string(bytes.substr(size / 2))});
  return 0;
}
