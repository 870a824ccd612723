#include "runtime/kv_events/cached_prompts.hpp"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <zmq.hpp>

#include "messages/msgpack_reader.hpp"
#include "runtime/kv_events/event_log.hpp"

namespace troupe {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::int64_t kMaxMessageBytes = std::int64_t{64} << 20;
/// Of all messages of one answer.
constexpr std::size_t kMaxAnswerBytes = std::size_t{1} << 30;

Error source_error(ErrorCode code, const KVEventsSource& source, const std::string& what) {
  return {code, "KV events of " + source.replay_endpoint + ": " + what, "events"};
}

}  // namespace

struct CachedPrompts::Event {
  std::string type;
  std::vector<std::string> hashes;
  std::string parent;
  std::vector<TokenId> token_ids;
  std::int64_t block_size = 0;
  std::int64_t group = 0;
  std::string medium;
  bool has_owner = false;   ///< an adapter, a tenant, media
  bool has_window = false;  ///< such groups drop the beginnings of prompts
};

Result<void> CachedPrompts::apply(std::string_view payload) {
  msgspec::Reader reader(payload);
  const auto read_field = [&](const std::string& name, Event& event) {
    if (name == "type") {
      event.type = reader.text();
    } else if (name == "block_hashes") {
      for (std::size_t left = reader.array(); reader.ok() && left > 0; --left)
        event.hashes.emplace_back(reader.raw());
    } else if (reader.nil()) {
      return;
    } else if (name == "parent_block_hash") {
      event.parent = reader.raw();
    } else if (name == "token_ids") {
      for (std::size_t left = reader.array(); reader.ok() && left > 0; --left)
        event.token_ids.push_back(static_cast<TokenId>(reader.integer()));
    } else if (name == "block_size") {
      event.block_size = reader.integer();
    } else if (name == "group_idx") {
      event.group = reader.integer();
    } else if (name == "kv_cache_spec_sliding_window") {
      event.has_window = true;
      reader.skip();
    } else if (name == "medium") {
      event.medium = reader.text();
    } else if (name == "lora_id" || name == "lora_name") {
      event.has_owner = true;
      reader.skip();
    } else if (name == "extra_keys") {
      for (std::size_t left = reader.array(); reader.ok() && left > 0; --left) {
        if (reader.nil()) continue;
        event.has_owner = true;
        reader.skip();
      }
    } else {
      reader.skip();
    }
  };
  const Error malformed{ErrorCode::kCorrupt, "the KV events are malformed", "events"};
  if (reader.array() < 2) return malformed;
  reader.skip();  // time
  for (std::size_t left = reader.array(); reader.ok() && left > 0; --left) {
    Event event;
    reader.fields([&](const std::string& name) { read_field(name, event); });
    if (!reader.ok()) break;
    if (event.type == "AllBlocksCleared") blocks_.clear();
    if (event.has_window) windowed_groups_.insert(event.group);
    if (windowed_groups_.contains(event.group)) continue;
    if (!event.medium.empty() && event.medium != "GPU") continue;
    if (event.type == "BlockStored") store(event);
    if (event.type != "BlockRemoved") continue;
    for (const std::string& hash : event.hashes) {
      const auto found = blocks_.find(hash);
      if (found != blocks_.end() && --found->second.num_holders <= 0) blocks_.erase(found);
    }
  }
  if (!reader.ok()) return malformed;
  return {};
}

void CachedPrompts::store(const Event& event) {
  const std::size_t num_blocks = event.hashes.size();
  if (event.has_owner || event.block_size <= 0 ||
      event.token_ids.size() / static_cast<std::size_t>(event.block_size) != num_blocks ||
      event.token_ids.size() % static_cast<std::size_t>(event.block_size) != 0)
    return;
  std::string parent = event.parent;
  auto tokens = event.token_ids.begin();
  for (const std::string& hash : event.hashes) {
    Block& block = blocks_[hash];
    if (++block.num_holders == 1) {
      block.parent = parent;
      block.token_ids.assign(tokens, tokens + event.block_size);
    }
    block.order = ++next_order_;
    tokens += event.block_size;
    parent = hash;
  }
}

std::vector<std::vector<TokenId>> CachedPrompts::prompts(std::size_t max_prompts) const {
  std::unordered_set<std::string_view> continued;
  for (const auto& [hash, block] : blocks_) continued.insert(block.parent);
  std::vector<const Block*> ends;
  for (const auto& [hash, block] : blocks_)
    if (!continued.contains(hash)) ends.push_back(&block);
  std::ranges::sort(ends, std::ranges::greater(), &Block::order);
  std::vector<std::vector<TokenId>> prompts;
  for (const Block* end : ends) {
    if (prompts.size() == max_prompts) break;
    std::vector<const Block*> path = {end};
    while (!path.back()->parent.empty() && path.size() <= blocks_.size()) {
      const auto parent = blocks_.find(path.back()->parent);
      if (parent == blocks_.end()) break;
      path.push_back(&parent->second);
    }
    if (!path.back()->parent.empty()) continue;  // its beginning is not there
    std::vector<TokenId>& prompt = prompts.emplace_back();
    for (auto block = path.rbegin(); block != path.rend(); ++block)
      prompt.insert(prompt.end(), (*block)->token_ids.begin(), (*block)->token_ids.end());
  }
  return prompts;
}

namespace {

/// One question to a publisher, until the end of its answer. False: it has nothing.
Result<bool> ask(zmq::socket_t& socket, const std::string& question, const KVEventsSource& source,
                 steady_clock::time_point deadline, CachedPrompts& prompts) {
  socket.send(zmq::buffer(std::string_view()), zmq::send_flags::sndmore);
  if (!socket.send(zmq::buffer(question), zmq::send_flags::none))
    return source_error(ErrorCode::kTimeout, source, "nobody takes the question");
  std::size_t num_bytes = 0;
  bool has_any = false;
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
    if (left <= milliseconds::zero() || zmq::poll(&item, 1, left) == 0)
      return source_error(ErrorCode::kTimeout, source,
                          "no answer within " + std::to_string(source.timeout.count()) + " ms");
    std::vector<std::string> frames;
    zmq::message_t part;
    do {
      if (!socket.recv(part, zmq::recv_flags::dontwait)) break;
      num_bytes += part.size();
      if (frames.size() < 5) frames.push_back(part.to_string());
    } while (part.more());
    if (num_bytes > kMaxAnswerBytes)
      return source_error(ErrorCode::kTooLarge, source,
                          "the answer has more than " + std::to_string(kMaxAnswerBytes) + " bytes");
    // vLLM's publisher leaves the topic out.
    if (frames.size() < 3 || frames.size() > 4 || !frames.front().empty())
      return source_error(ErrorCode::kCorrupt, source, "the answer is malformed");
    const std::string& sequence = frames[frames.size() - 2];
    if (sequence == sequence_bytes(kEndOfReplay)) return has_any;
    has_any = true;
    if (frames.size() == 4 && !source.topic.empty() && frames[1] != source.topic) continue;
    RETURN_IF_ERROR(prompts.apply(frames.back()));
  }
}

}  // namespace

Result<CachedPrompts> read_cached_prompts(const KVEventsSource& source) {
  if (!source.replay_endpoint.starts_with("tcp://") &&
      !source.replay_endpoint.starts_with("ipc://"))
    return invalid_argument(
        "replay_endpoint is " + source.replay_endpoint + ", expected tcp://host:port or ipc://path",
        "events");
  const auto deadline = steady_clock::now() + source.timeout;
  try {
    zmq::context_t context(1);
    zmq::socket_t socket(context, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::maxmsgsize, kMaxMessageBytes);
    socket.set(zmq::sockopt::sndtimeo, static_cast<int>(source.timeout.count()));
    if (source.replay_endpoint.find("::") != std::string::npos) socket.set(zmq::sockopt::ipv6, 1);
    socket.connect(source.replay_endpoint);
    CachedPrompts prompts;
    ASSIGN_OR_RETURN(const bool has_snapshot,
                     ask(socket, std::string(kSnapshotRequest), source, deadline, prompts));
    if (!has_snapshot) {
      RETURN_IF_ERROR(ask(socket, sequence_bytes(0), source, deadline, prompts));
    }
    return prompts;
  } catch (const zmq::error_t& error) {
    return source_error(
        error.num() == EINVAL ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable, source,
        error.what());
  }
}

}  // namespace troupe
