#include "runtime/kv_transfer/peer_loader.hpp"

#include <algorithm>
#include <numeric>

#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/shared_memory.hpp"

namespace troupe {

using std::chrono::steady_clock;

namespace {

/// For what is not computed yet, when no other load can go on.
constexpr std::uint32_t kWaitMs = 50;

}  // namespace

PeerLoader::PeerLoader(const PeerSource& source, PeerReader reader, PeerPages pages)
    : endpoints_(source.endpoints),
      is_split_alike_(source.tensor_parallel_size == reader.tensor_parallel_size &&
                      std::cmp_equal(source.endpoints.size(), reader.world_size)),
      reader_(std::move(reader)),
      pages_(std::move(pages)),
      renewed_(steady_clock::now()),
      thread_([this] { run(); }) {}

PeerLoader::~PeerLoader() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  stop_.signal();
  changed_.notify_all();
  thread_.join();
}

// ---- the owner's side ---------------------------------------------------------------------------

void PeerLoader::watch(const std::string& key) {
  {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(watched_, key) != watched_.end()) return;
    watched_.push_back(key);
  }
  changed_.notify_all();
}

void PeerLoader::load(PeerLoad load) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.emplace_back(Load{.what = std::move(load), .left = {}, .latest = {}});
  }
  changed_.notify_all();
}

void PeerLoader::release(const std::string& key) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.emplace_back(Release{key});
  }
  changed_.notify_all();
}

void PeerLoader::take_loaded(std::vector<Loaded>& loaded) {
  const std::lock_guard lock(mutex_);
  for (Loaded& one : loaded_) loaded.push_back(std::move(one));
  loaded_.clear();
}

bool PeerLoader::is_idle() {
  const std::lock_guard lock(mutex_);
  return jobs_.empty() && watched_.empty() && loaded_.empty() && !is_busy_;
}

// ---- the thread's side --------------------------------------------------------------------------

void PeerLoader::run() {
  std::size_t num_waiting = 0;  // jobs one after the other that wait for the engine
  std::unique_lock lock(mutex_);
  while (true) {
    const auto has_work = [this] { return ends_ || !jobs_.empty(); };
    // Until a lease is known, half a second is short enough for any.
    const std::chrono::duration<double> pause(lease_s_ > 0 ? lease_s_ / 4 : 0.5);
    if (watched_.empty())
      changed_.wait(lock, [&] { return has_work() || !watched_.empty(); });
    else
      changed_.wait_for(lock, pause, has_work);
    if (ends_) return;
    is_busy_ = true;
    std::optional<Job> job;
    if (!jobs_.empty()) {
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    const std::size_t num_others = jobs_.size();
    lock.unlock();
    renew();
    Load* const load = job ? std::get_if<Load>(&*job) : nullptr;
    std::string key;
    std::optional<Loaded> loaded;
    bool is_gone = false;
    if (load != nullptr) {
      const auto performed = perform(*load, num_waiting > num_others ? kWaitMs : 0);
      if (performed.ok() && !*performed) {
        ++num_waiting;
        lock.lock();
        is_busy_ = false;
        jobs_.push_back(std::move(*job));
        continue;
      }
      num_waiting = 0;
      key = load->what.source.key;
      loaded = Loaded{load->what.id, {}};
      if (!performed.ok()) loaded->result = performed.error();
      if (!loaded->result.ok())
        log_warning("the KV of a request cannot be loaded", kv("request", value(load->what.id)),
                    kv("key", key), kv("reason", loaded->result.error().message));
      // Also after a failure: nobody else is going to read it. One that cannot be reached is not
      // told; its lease ends.
      is_gone = !loaded->result.ok() && (loaded->result.error().code == ErrorCode::kTimeout ||
                                         loaded->result.error().code == ErrorCode::kUnavailable);
      if (!is_gone) perform(Release{key});
    } else if (job) {
      key = std::get<Release>(*job).key;
      perform(std::get<Release>(*job));
    }
    lock.lock();
    is_busy_ = false;
    if (!key.empty()) std::erase(watched_, key);
    if (is_gone) fail_waiting(loaded->result.error());
    if (loaded) loaded_.push_back(std::move(*loaded));
  }
}

/// What waits would wait as long for an engine that cannot be reached. The mutex is held.
void PeerLoader::fail_waiting(const Error& error) {
  for (const Job& job : jobs_) {
    const auto* const load = std::get_if<Load>(&job);
    if (load == nullptr) continue;
    loaded_.push_back({load->what.id, error});
    std::erase(watched_, load->what.source.key);
  }
  std::erase_if(jobs_, [](const Job& job) { return std::holds_alternative<Load>(job); });
}

std::vector<std::size_t> PeerLoader::sources() const {
  if (is_split_alike_) return {static_cast<std::size_t>(reader_.rank)};
  std::vector<std::size_t> all;
  for (std::size_t rank = 0; rank < endpoints_.size(); ++rank) all.push_back(rank);
  return all;
}

Result<PeerLoader::Rank*> PeerLoader::connect(std::size_t rank) {
  const auto known = ranks_.find(rank);
  if (known != ranks_.end()) return &known->second;
  ASSIGN_OR_RETURN(const PeerEndpoint endpoint, parse_peer_endpoint(endpoints_[rank]));
  Rank connected;
  ASSIGN_OR_RETURN(connected.link,
                   PeerLink::connect(endpoint, reader_.credentials, stop_.get(), reader_.timeout));
  RETURN_IF_ERROR(connected.link->send(
      {PeerHello{kPeerVersion, reader_.origin, reader_.uses_devices}}, deadline()));
  ASSIGN_OR_RETURN(PeerMessage answer, connected.link->receive(deadline(), reader_.timeout));
  auto* const welcome = std::get_if<PeerWelcome>(&answer.body);
  if (welcome == nullptr) return Error{ErrorCode::kCorrupt, "an unexpected frame", {}};
  if (!welcome->error.empty()) return Error{ErrorCode::kInvalidArgument, welcome->error, {}};
  connected.welcome = std::move(*welcome);
  if (reader_.uses_devices) {
    ASSIGN_OR_RETURN(connected.device,
                     meet_peer_device(connected.welcome.device_id, PeerDevice::End::kLoads,
                                      reader_.device, deadline()));
  }
  lease_s_ = connected.welcome.lease_s;
  return &ranks_.emplace(rank, std::move(connected)).first->second;
}

/// What cannot be renewed will be found missing.
void PeerLoader::renew() {
  const SteadyTime now = steady_clock::now();
  if (now - renewed_ < std::chrono::duration<double>(lease_s_ / 4)) return;
  renewed_ = now;
  PeerRenew renewal;
  {
    const std::lock_guard lock(mutex_);
    renewal.keys = watched_;
  }
  if (renewal.keys.empty()) return;
  for (const std::size_t rank : sources()) {
    const auto connected = connect(rank);
    if (connected.ok() && !(*connected)->link->send({renewal}, deadline()).ok()) ranks_.erase(rank);
  }
}

Result<bool> PeerLoader::perform(Load& load, std::uint32_t wait_ms) {
  std::size_t rank = 0;
  const auto performed = [&]() -> Result<bool> {
    for (const std::size_t source : sources()) {
      rank = source;
      RETURN_IF_ERROR(connect(source));
    }
    const auto lease =
        std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(lease_s_));
    if (!load.left) {
      ASSIGN_OR_RETURN(load.left, plan(load.what));
      load.latest = steady_clock::now() + lease;
    }
    while (!load.left->empty()) {
      Read& next = load.left->front();
      rank = next.rank;
      next.request.wait_ms = wait_ms;
      ASSIGN_OR_RETURN(Rank* const from, connect(next.rank));
      ASSIGN_OR_RETURN(const bool is_there, read(*from, next.request, load.what.blocks));
      if (is_there) {
        load.left->pop_front();
        load.latest = steady_clock::now() + lease;
      } else if (steady_clock::now() < load.latest) {
        return false;
      } else {
        return Error{ErrorCode::kNotFound,
                     "nothing was computed for " + std::to_string(lease_s_) + " s",
                     {}};
      }
    }
    return true;
  }();
  if (performed.ok()) return performed;
  // Of a connection that has failed in between nothing else can be expected.
  ranks_.erase(rank);
  return Error{performed.error().code, endpoints_[rank] + ": " + performed.error().message, {}};
}

void PeerLoader::perform(const Release& release) {
  const std::vector<std::size_t> ranks = sources();
  const std::int32_t num_readers = is_split_alike_ ? 1 : reader_.world_size;
  for (const std::size_t rank : ranks) {
    const auto connected = connect(rank);
    if (connected.ok() &&
        !(*connected)->link->send({PeerRelease{release.key, num_readers}}, deadline()).ok())
      ranks_.erase(rank);
  }
}

Result<std::deque<PeerLoader::Read>> PeerLoader::plan(const PeerLoad& load) {
  std::deque<Read> reads;
  // Units of all layers divide it, or are as long as a part.
  std::int32_t part_tokens = kPartTokens;
  for (const PeerPages::Layer& layer : pages_.layers())
    part_tokens = std::lcm(part_tokens, layer.shape.unit_tokens);
  for (std::int32_t begin = load.begin_token; begin < load.end_token;) {
    const std::int32_t end = std::min(load.end_token, (begin / part_tokens + 1) * part_tokens);
    for (const std::size_t rank : sources())
      RETURN_IF_ERROR(plan_reads(rank, ranks_.at(rank), load, begin, end, reads));
    begin = end;
  }
  return reads;
}

Result<void> PeerLoader::plan_reads(std::size_t rank, const Rank& from, const PeerLoad& load,
                                    std::int32_t begin_token, std::int32_t end_token,
                                    std::deque<Read>& reads) const {
  PeerRead request{.key = load.source.key, .digest = load.source.digest};
  const auto flush = [&] {
    if (!request.pieces.empty()) reads.push_back({rank, request});
    request.pieces.clear();
    request.num_bytes = 0;
  };
  for (const PeerPages::Layer& layer : pages_.layers()) {
    const auto found = std::ranges::find(from.welcome.layers, layer.shape.layer, &PeerLayer::layer);
    if (found == from.welcome.layers.end()) continue;  // of another stage
    const PeerLayer& theirs = *found;
    if (theirs.unit_tokens != layer.shape.unit_tokens ||
        theirs.head_bytes != layer.shape.head_bytes || theirs.num_parts != layer.shape.num_parts)
      return Error{ErrorCode::kUnsupported,
                   "blocks of " + std::to_string(theirs.unit_tokens) + " and of " +
                       std::to_string(layer.shape.unit_tokens) + " tokens do not fit together",
                   {}};
    const bool same_heads = from.welcome.tensor_parallel_size == reader_.tensor_parallel_size;
    const std::int32_t their_first = same_heads ? 0 : from.welcome.tensor_rank * theirs.num_heads;
    const std::int32_t our_first = same_heads ? 0 : reader_.tensor_rank * layer.shape.num_heads;
    const std::int32_t begin = std::max(their_first, our_first);
    const std::int32_t end =
        std::min(their_first + theirs.num_heads, our_first + layer.shape.num_heads);
    if (begin >= end) continue;
    PeerPiece piece{.layer = layer.shape.layer,
                    .head_begin = begin - their_first,
                    .head_end = end - their_first};
    const std::int32_t unit_tokens = layer.shape.unit_tokens;
    const std::int32_t end_unit = (end_token + unit_tokens - 1) / unit_tokens;
    for (std::int32_t unit = begin_token / unit_tokens; unit < end_unit; ++unit) {
      // Of tokens that nothing attends to any more there is no block.
      if (PeerPages::at(layer, load.blocks.at(layer.group), unit, 0, 0) == nullptr) continue;
      piece.units.push_back(unit);
      const auto bytes = static_cast<std::uint64_t>(piece_bytes(theirs, piece));
      if (std::cmp_less(request.num_bytes + bytes, kMaxReadBytes)) continue;
      request.pieces.push_back(piece);
      request.num_bytes += bytes;
      piece.units.clear();
      flush();
    }
    if (piece.units.empty()) continue;
    request.num_bytes += static_cast<std::uint64_t>(piece_bytes(theirs, piece));
    request.pieces.push_back(std::move(piece));
    // The first layers are there while the last ones are being computed.
    if (std::cmp_greater_equal(request.num_bytes, kMinReadBytes)) flush();
  }
  flush();
  return {};
}

Result<bool> PeerLoader::read(Rank& from, PeerRead request,
                              const std::vector<std::vector<BlockId>>& blocks) {
  renew();
  std::vector<std::byte> own;
  SharedMemory shared;
  std::span<std::byte> bytes;
  request.shared = from.device == nullptr && from.link->is_local();
  if (request.shared) {
    ASSIGN_OR_RETURN(shared, SharedMemory::create("troupe-kv", request.num_bytes));
    bytes = shared.bytes().first(request.num_bytes);
  } else if (from.device == nullptr) {
    own.resize(request.num_bytes);
    bytes = own;
  }
  RETURN_IF_ERROR(
      from.link->send({request}, deadline(), request.shared ? shared.file().get() : -1));
  ASSIGN_OR_RETURN(const PeerMessage answer, from.link->receive(deadline(), reader_.timeout));
  const auto* const data = std::get_if<PeerData>(&answer.body);
  if (data == nullptr) return Error{ErrorCode::kCorrupt, "an unexpected frame", {}};
  if (!data->error.empty()) return Error{ErrorCode::kNotFound, data->error, {}};
  if (data->pending) return false;
  const std::vector<PeerPart> to = parts(from, request, blocks);
  if (from.device != nullptr) {
    RETURN_IF_ERROR(from.device->receive(to, deadline()));
    return true;
  }
  if (!request.shared) RETURN_IF_ERROR(from.link->receive_bytes(bytes, deadline()));
  const auto checksum =
      xxh3_128(std::span(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
  if (checksum != data->checksum)
    return Error{ErrorCode::kCorrupt,
                 "xxh3_128 is " + to_hex(checksum) + ", expected " + to_hex(data->checksum),
                 {}};
  ASSIGN_OR_RETURN(DeviceCopier copier, pages_.device().make_copier());
  const std::byte* next = bytes.data();
  for (const PeerPart& part : to) {
    copier.copy_to_device(part.data, next, part.num_bytes);
    next += part.num_bytes;
  }
  RETURN_IF_ERROR(copier.synchronize());
  return true;
}

std::vector<PeerPart> PeerLoader::parts(const Rank& from, const PeerRead& request,
                                        const std::vector<std::vector<BlockId>>& blocks) const {
  std::vector<PeerPart> parts;
  for (const PeerPiece& piece : request.pieces) {
    const PeerPages::Layer& layer = *pages_.find(piece.layer);
    const PeerLayer& theirs =
        *std::ranges::find(from.welcome.layers, piece.layer, &PeerLayer::layer);
    const bool same_heads = from.welcome.tensor_parallel_size == reader_.tensor_parallel_size;
    const std::int32_t head = same_heads
                                  ? piece.head_begin
                                  : piece.head_begin + from.welcome.tensor_rank * theirs.num_heads -
                                        reader_.tensor_rank * layer.shape.num_heads;
    const auto part_bytes =
        static_cast<std::size_t>((piece.head_end - piece.head_begin) * layer.shape.head_bytes);
    for (const std::int32_t unit : piece.units) {
      for (std::int32_t part = 0; part < layer.shape.num_parts; ++part) {
        parts.push_back(
            {PeerPages::at(layer, blocks.at(layer.group), unit, part, head), part_bytes});
      }
    }
  }
  return parts;
}

}  // namespace troupe
