#include "runtime/kv_transfer/peer_server.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"
#include "runtime/base/shared_memory.hpp"

namespace troupe {
namespace {

using std::chrono::steady_clock;

constexpr int kBacklog = 64;
constexpr std::uint32_t kMaxWaitMs = 1000;
/// Their readers learn at once that they come too late.
constexpr std::size_t kMaxOver = 1024;

Error listen_error(const std::string& where) {
  return {ErrorCode::kIo,
          "kv-transfer-config: cannot listen on " + where + ": " + std::strerror(errno),
          "kv-transfer-config"};
}

/// In the abstract namespace: nothing is left behind.
Result<FileDescriptor> listen_local(const std::string& name) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (!socket.valid() ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(socket.get(), kBacklog) != 0)
    return listen_error("a local socket");
  return socket;
}

/// Sets the port if it is 0.
Result<FileDescriptor> listen_remote(const std::string& host, std::uint16_t& port) {
  const std::string where = host + ":" + std::to_string(port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0)
    return listen_error(where);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  FileDescriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  if (!socket.valid() ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(socket.get(), kBacklog) != 0)
    return listen_error(where);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    return listen_error(where);
  port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return socket;
}

/// A process of the same user.
bool is_trusted(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

}  // namespace

Result<std::unique_ptr<PeerServer>> PeerServer::open(const PeerListen& listen,
                                                     const Identity& identity) {
  PeerEndpoint endpoint{
      .local = "troupe-kv-" + random_hex(16), .host = listen.host, .port = listen.port};
  ASSIGN_OR_RETURN(FileDescriptor local, listen_local(endpoint.local));
  FileDescriptor remote;
  if (!listen.host.empty()) {
    ASSIGN_OR_RETURN(remote, listen_remote(listen.host, endpoint.port));
  }
  return std::unique_ptr<PeerServer>(
      new PeerServer(std::move(local), std::move(remote), std::move(endpoint), listen, identity));
}

PeerServer::PeerServer(FileDescriptor local, FileDescriptor remote, PeerEndpoint endpoint,
                       PeerListen listen, const Identity& identity)
    : local_(std::move(local)),
      remote_(std::move(remote)),
      endpoint_(std::move(endpoint)),
      listen_(std::move(listen)),
      identity_(identity),
      thread_([this] { accept_all(); }) {}

PeerServer::~PeerServer() {
  stop_.signal();
  changed_.notify_all();
  thread_.join();
  for (Connection& connection : connections_) connection.thread.join();
}

SteadyTime PeerServer::lease_end() const {
  return steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(
                                   std::chrono::duration<double>(identity_.lease_s));
}

// ---- the owner's side ---------------------------------------------------------------------------

void PeerServer::set_pages(PeerPages pages, const PeerOrigin& origin, int device) {
  const std::unique_lock pages_lock(pages_mutex_);
  const std::lock_guard lock(mutex_);
  pages_ = std::move(pages);
  origin_ = origin;
  device_ = device;
  while (!held_.empty()) forget(held_.begin());
  step_streams_.clear();
}

void PeerServer::hold(const PeerHold& hold) {
  {
    const std::lock_guard lock(mutex_);
    std::erase(over_, hold.key);
    const auto [held, is_new] =
        held_.try_emplace(hold.key, Held{.what = hold, .expires = lease_end()});
    if (std::exchange(held->second.streams, false)) {
      held->second.what = hold;
      held->second.expires = lease_end();
      held->second.num_ready.clear();
    }
  }
  changed_.notify_all();
}

void PeerServer::begin_step() {
  {
    const std::lock_guard lock(mutex_);
    in_step_ = true;
  }
  changed_.notify_all();
}

void PeerServer::begin_stream_step(const PeerStream& stream) {
  const std::lock_guard lock(mutex_);
  const auto [held, is_new] = held_.try_emplace(
      stream.key, Held{.what = {.key = stream.key,
                                .id = stream.id,
                                .digest = stream.digest,
                                .num_tokens = stream.num_tokens,
                                .blocks = stream.blocks},
                       .expires = {},
                       .streams = true,
                       .num_ready = std::vector<std::int32_t>(pages_.layers().size())});
  if (!is_new) {
    std::vector<std::vector<BlockId>>& blocks = held->second.what.blocks;
    for (std::size_t g = 0; g < stream.blocks.size(); ++g)
      blocks.at(g).insert(blocks[g].end(), stream.blocks[g].begin(), stream.blocks[g].end());
  }
  step_streams_.emplace_back(stream.key, stream.num_ready);
}

void PeerServer::finish_layer(std::int32_t layer) {
  if (step_streams_.empty()) return;
  const auto found = std::ranges::find(
      pages_.layers(), layer, [](const PeerPages::Layer& each) { return each.shape.layer; });
  if (found == pages_.layers().end()) return;
  const auto index = static_cast<std::size_t>(found - pages_.layers().begin());
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, num_ready] : step_streams_) {
      const auto held = held_.find(key);
      if (held != held_.end() && held->second.streams) held->second.num_ready[index] = num_ready;
    }
  }
  changed_.notify_all();
}

void PeerServer::finish_step() {
  {
    const std::lock_guard lock(mutex_);
    in_step_ = false;
    for (const auto& [key, num_ready] : step_streams_) {
      const auto held = held_.find(key);
      if (held == held_.end() || !held->second.streams) continue;
      std::ranges::fill(held->second.num_ready, num_ready);
    }
  }
  step_streams_.clear();
  changed_.notify_all();
}

void PeerServer::end_stream(std::unique_lock<std::mutex>& lock, const std::string& key) {
  const auto held = held_.find(key);
  if (held == held_.end() || !held->second.streams) return;
  // Only copies within the memory are counted, and new ones do not begin.
  held->second.num_ready.assign(held->second.num_ready.size(), -1);
  changed_.wait(lock, [&] { return held->second.num_reading == 0; });
  forget(held);
}

void PeerServer::end_stream(const std::string& key) {
  {
    std::unique_lock lock(mutex_);
    end_stream(lock, key);
  }
  changed_.notify_all();
}

void PeerServer::end_all_streams() {
  {
    std::unique_lock lock(mutex_);
    std::vector<std::string> ended;
    for (const auto& [key, held] : held_)
      if (held.streams) ended.push_back(key);
    for (const std::string& key : ended) end_stream(lock, key);
  }
  changed_.notify_all();
}

std::vector<RequestId> PeerServer::take_finished() {
  std::vector<RequestId> finished;
  const SteadyTime now = steady_clock::now();
  const std::lock_guard lock(mutex_);
  for (auto next = held_.begin(); next != held_.end();) {
    const auto current = next++;
    const Held& held = current->second;
    if (held.streams || held.num_reading > 0 || (!held.released && held.expires > now)) continue;
    if (!held.released)
      log_warning("nobody has read the KV of a request", kv("request", value(held.what.id)),
                  kv("lease_s", identity_.lease_s));
    finished.push_back(held.what.id);
    forget(current);
  }
  return finished;
}

// ---- connections --------------------------------------------------------------------------------

void PeerServer::accept_all() {
  std::array<pollfd, 3> ready = {pollfd{.fd = stop_.get(), .events = POLLIN, .revents = 0},
                                 pollfd{.fd = local_.get(), .events = POLLIN, .revents = 0},
                                 pollfd{.fd = remote_.get(), .events = POLLIN, .revents = 0}};
  while (true) {
    if (::poll(ready.data(), ready.size(), -1) < 0 && errno != EINTR) return;
    if (ready[0].revents != 0) return;
    connections_.remove_if([](Connection& connection) {
      if (!connection.ended) return false;
      connection.thread.join();
      return true;
    });
    if (ready[1].revents != 0) accept_one(local_.get(), true);
    if (ready[2].revents != 0) accept_one(remote_.get(), false);
  }
}

void PeerServer::accept_one(int listener, bool is_local) {
  FileDescriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) return;
  if (connections_.size() >= kMaxConnections || (is_local && !is_trusted(socket.get()))) {
    log_warning("a reader of the KV cache is refused", kv("connections", connections_.size()));
    return;
  }
  std::shared_ptr<Session> session;
  if (!is_local) session = listen_.credentials->begin(socket.get(), Session::Side::kAccepts);
  auto link = std::make_shared<PeerLink>(std::move(socket), std::move(session), stop_.get());
  Connection& connection = connections_.emplace_back();
  connection.thread = std::thread([this, link, &connection] {
    serve(*link);
    connection.ended = true;
  });
}

void PeerServer::serve(PeerLink& link) {
  const auto served = [&]() -> Result<void> {
    ASSIGN_OR_RETURN(const std::unique_ptr<PeerDevice> device, welcome(link));
    while (true) {
      FileDescriptor memory;
      ASSIGN_OR_RETURN(const PeerMessage message,
                       link.receive(std::nullopt, kMaxFrameTime, &memory));
      if (const auto* const read = std::get_if<PeerRead>(&message.body)) {
        RETURN_IF_ERROR(device != nullptr ? answer(link, *read, *device)
                                          : answer(link, *read, std::move(memory)));
      } else if (const auto* const renewal = std::get_if<PeerRenew>(&message.body)) {
        renew(*renewal);
      } else if (const auto* const release = std::get_if<PeerRelease>(&message.body)) {
        this->release(*release);
      } else {
        return Error{ErrorCode::kCorrupt, "an unexpected frame", {}};
      }
    }
  }();
  log_debug("a reader of the KV cache is gone", kv("reason", served.error().message));
}

Result<std::unique_ptr<PeerDevice>> PeerServer::welcome(PeerLink& link) {
  ASSIGN_OR_RETURN(const PeerMessage first,
                   link.receive(steady_clock::now() + kMaxFrameTime, kMaxFrameTime));
  const auto* const hello = std::get_if<PeerHello>(&first.body);
  if (hello == nullptr) return Error{ErrorCode::kCorrupt, "an unexpected frame", {}};
  PeerWelcome welcome{.tensor_rank = identity_.tensor_rank,
                      .tensor_parallel_size = identity_.tensor_parallel_size,
                      .lease_s = identity_.lease_s};
  if (identity_.uses_devices) {
    ASSIGN_OR_RETURN(welcome.device_id, make_peer_device_id());
  }
  int device = 0;
  {
    const std::shared_lock lock(pages_mutex_);
    device = device_;
    welcome.layers = pages_.shapes();
    if (hello->version != kPeerVersion)
      welcome.error = "its version is " + std::to_string(hello->version) + ", expected " +
                      std::to_string(kPeerVersion);
    else if (hello->origin != origin_)
      welcome.error = "its model, types or instruction set differ: " + to_hex(hello->origin) +
                      ", expected " + to_hex(origin_);
    else if (hello->uses_devices != identity_.uses_devices)
      welcome.error = "one of both transfers by NCCL, and the other one does not";
  }
  RETURN_IF_ERROR(link.send({welcome}, steady_clock::now() + kMaxFrameTime));
  if (!welcome.error.empty()) return Error{ErrorCode::kInvalidArgument, welcome.error, {}};
  if (!identity_.uses_devices) return std::unique_ptr<PeerDevice>();
  return meet_peer_device(welcome.device_id, PeerDevice::End::kServes, device,
                          steady_clock::now() + kMaxFrameTime);
}

template <class Use>
Result<bool> PeerServer::use_parts(const PeerRead& read, Use&& use) {
  PeerHold what;
  ASSIGN_OR_RETURN(const bool begun, begin_reading(read, what));
  if (!begun) return false;
  const auto used = [&]() -> Result<void> {
    // A new cache waits for this; what was held of the earlier one is gone by then.
    const std::shared_lock pages_lock(pages_mutex_);
    if (const std::lock_guard lock(mutex_); !held_.contains(read.key))
      return Error{ErrorCode::kNotFound, "the engine begins anew", {}};
    std::vector<PeerPart> parts;
    std::uint64_t bytes_left = read.num_bytes;
    for (const PeerPiece& piece : read.pieces) {
      const PeerPages::Layer* const layer = pages_.find(piece.layer);
      if (layer == nullptr || piece.head_begin < 0 || piece.head_begin >= piece.head_end ||
          piece.head_end > layer->shape.num_heads)
        return invalid_argument("layer " + std::to_string(piece.layer) + " has no heads " +
                                std::to_string(piece.head_begin) + " to " +
                                std::to_string(piece.head_end));
      const auto bytes = piece_bytes(layer->shape, piece);
      if (std::cmp_greater(bytes, bytes_left))
        return invalid_argument("more bytes are wanted than announced");
      const auto part_bytes =
          static_cast<std::size_t>((piece.head_end - piece.head_begin) * layer->shape.head_bytes);
      for (const std::int32_t unit : piece.units) {
        for (std::int32_t part = 0; part < layer->shape.num_parts; ++part) {
          std::byte* const from =
              PeerPages::at(*layer, what.blocks.at(layer->group), unit, part, piece.head_begin);
          if (from == nullptr)
            return Error{ErrorCode::kNotFound,
                         "layer " + std::to_string(piece.layer) + " has no tokens from " +
                             std::to_string(unit * layer->shape.unit_tokens) + " on",
                         {}};
          parts.push_back({from, part_bytes});
        }
      }
      bytes_left -= static_cast<std::uint64_t>(bytes);
    }
    if (bytes_left > 0) return invalid_argument("fewer bytes are wanted than announced");
    return use(parts);
  }();
  end_reading(read.key);
  RETURN_IF_ERROR(used);
  return true;
}

Result<void> PeerServer::answer(PeerLink& link, const PeerRead& read, PeerDevice& device) {
  const SteadyTime deadline = steady_clock::now() + kMaxFrameTime;
  bool announced = false;
  const auto sent = use_parts(read, [&](std::span<const PeerPart> parts) -> Result<void> {
    announced = true;
    RETURN_IF_ERROR(link.send({PeerData{}}, deadline));
    return device.send(parts, deadline);
  });
  if (announced) {
    RETURN_IF_ERROR(sent);
    return {};
  }
  PeerData data;
  data.pending = sent.ok();
  if (!sent.ok()) data.error = sent.error().message;
  return link.send({data}, deadline);
}

Result<void> PeerServer::answer(PeerLink& link, const PeerRead& read, FileDescriptor memory) {
  PeerData data;
  std::vector<std::byte> own;
  SharedMemory shared;
  std::span<std::byte> bytes;
  constexpr std::uint64_t kMaxReadBytes = std::uint64_t{1} << 30;
  const auto prepared = [&]() -> Result<bool> {
    if (read.num_bytes > kMaxReadBytes)
      return invalid_argument(std::to_string(read.num_bytes) + " bytes are wanted at once");
    if (read.shared) {
      ASSIGN_OR_RETURN(shared, SharedMemory::map(std::move(memory), read.num_bytes));
      bytes = shared.bytes().first(read.num_bytes);
    } else {
      own.resize(read.num_bytes);
      bytes = own;
    }
    return use_parts(read, [&](std::span<const PeerPart> parts) -> Result<void> {
      if (parts.empty()) return {};  // there may be no cache yet
      ASSIGN_OR_RETURN(DeviceCopier copier, pages_.device().make_copier());
      std::byte* out = bytes.data();
      for (const PeerPart& part : parts) {
        copier.copy_to_host(out, part.data, part.num_bytes);
        out += part.num_bytes;
      }
      return copier.synchronize();
    });
  }();
  data.pending = prepared.ok() && !*prepared;
  if (!prepared.ok())
    data.error = prepared.error().message;
  else if (!data.pending)
    data.checksum =
        xxh3_128(std::span(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
  const SteadyTime deadline = steady_clock::now() + kMaxFrameTime;
  RETURN_IF_ERROR(link.send({data}, deadline));
  if (!prepared.ok() || data.pending || read.shared) return {};
  return link.send_bytes(bytes, deadline);
}

bool PeerServer::is_ready(const Held& held, const PeerRead& read) const {
  if (held.num_ready.empty()) return true;
  return std::ranges::all_of(read.pieces, [&](const PeerPiece& piece) {
    const PeerPages::Layer* const layer = pages_.find(piece.layer);
    if (layer == nullptr || piece.units.empty()) return true;  // the copy refuses it
    const std::int64_t end =
        (std::int64_t{std::ranges::max(piece.units)} + 1) * layer->shape.unit_tokens;
    const auto index = static_cast<std::size_t>(layer - pages_.layers().data());
    return held.num_ready[index] >= std::min<std::int64_t>(end, held.what.num_tokens);
  });
}

bool PeerServer::is_over(const std::string& key) const {
  return std::ranges::find(over_, key) != over_.end();
}

void PeerServer::forget(std::map<std::string, Held>::iterator held) {
  over_.push_back(held->first);
  if (over_.size() > kMaxOver) over_.pop_front();
  held_.erase(held);
}

Result<bool> PeerServer::begin_reading(const PeerRead& read, PeerHold& what) {
  std::unique_lock lock(mutex_);
  const SteadyTime now = steady_clock::now();
  const SteadyTime latest = now + kMaxWaitForKey;
  const SteadyTime latest_ready =
      std::min(latest, now + std::chrono::milliseconds(std::min(read.wait_ms, kMaxWaitMs)));
  const auto held = [&] { return held_.find(read.key); };
  while (held() == held_.end() && !is_over(read.key)) {
    const bool in_step = in_step_;
    const bool changes = changed_.wait_until(lock, in_step ? latest_ready : latest, [&] {
      return held() != held_.end() || is_over(read.key) || in_step_ != in_step;
    });
    if (changes) continue;
    // A step takes as long as it takes, and the next one may tell of the key.
    if (in_step) return false;
    return Error{ErrorCode::kNotFound, "the blocks of " + read.key + " are not held", {}};
  }
  if (held() == held_.end())
    return Error{ErrorCode::kNotFound, "the blocks of " + read.key + " are not held any more", {}};
  if (held()->second.what.digest != read.digest)
    return invalid_argument("the blocks of " + read.key + " are those of another prompt");
  const auto has_end = [&] { return held() == held_.end() || is_ready(held()->second, read); };
  if (!changed_.wait_until(lock, latest_ready, has_end)) return false;
  if (held() == held_.end())
    return Error{ErrorCode::kNotFound, "the blocks of " + read.key + " are given up", {}};
  Held& found = held()->second;
  ++found.num_reading;
  found.expires = lease_end();
  what = found.what;
  return true;
}

void PeerServer::end_reading(const std::string& key) {
  {
    const std::lock_guard lock(mutex_);
    const auto held = held_.find(key);
    if (held == held_.end()) return;
    --held->second.num_reading;
    held->second.expires = lease_end();
  }
  changed_.notify_all();
}

void PeerServer::renew(const PeerRenew& what) {
  const std::lock_guard lock(mutex_);
  for (const std::string& key : what.keys) {
    const auto held = held_.find(key);
    if (held != held_.end()) held->second.expires = lease_end();
  }
}

void PeerServer::release(const PeerRelease& what) {
  const std::lock_guard lock(mutex_);
  const auto held = held_.find(what.key);
  if (held != held_.end()) held->second.released = ++held->second.num_released >= what.num_readers;
}

}  // namespace troupe
