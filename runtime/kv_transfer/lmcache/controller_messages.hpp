#pragma once
// The messages between an engine and LMCache's controller (`lmcache_controller`), as msgspec packs
// them: maps whose first field is the type.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/lmcache/chunk_board.hpp"

namespace troupe::lmcache {

/// A rank of an engine, and where it takes orders.
struct ControlledWorker {
  std::string instance;
  std::int32_t worker = 0;
  std::string ip;
  std::int32_t port = 0;
  std::optional<std::string> store_url;  ///< into which its chunks are moved
};

[[nodiscard]] std::string controller_register(const ControlledWorker& worker);
[[nodiscard]] std::string controller_deregister(const ControlledWorker& worker);
[[nodiscard]] std::string controller_heartbeat(const ControlledWorker& worker);
/// Of one location; they are numbered from first_number on.
[[nodiscard]] std::string controller_operations(const ControlledWorker& worker, Location location,
                                                std::span<const ChunkBoard::Change> changes,
                                                std::uint64_t first_number);

/// All keys of a location anew, which the controller may ask for.
struct FullSync {
  Location location = Location::kCpu;
  std::string id;
  std::size_t num_keys = 0;
  std::size_t num_batches = 0;
};
[[nodiscard]] std::string controller_sync_start(const ControlledWorker& worker,
                                                const FullSync& sync);
[[nodiscard]] std::string controller_sync_batch(const ControlledWorker& worker,
                                                const FullSync& sync, std::size_t number,
                                                std::span<const PythonInt> keys);
[[nodiscard]] std::string controller_sync_end(const ControlledWorker& worker, const FullSync& sync);
[[nodiscard]] std::string controller_sync_status(const ControlledWorker& worker,
                                                 const FullSync& sync);

/// What it answers to the requests among these (registration, heartbeat, start and status of a
/// synchronisation).
struct ControllerReply {
  std::string type;           ///< "RegisterRetMsg"
  std::string heartbeat_url;  ///< of a registration; empty: none
  bool wants_sync = false;    ///< of a heartbeat
  bool accepted = false;      ///< of a start
  bool is_complete = false;   ///< of a status, with no batches missing
  std::string error;
};
/// Errors: kCorrupt.
[[nodiscard]] Result<ControllerReply> parse_controller_reply(std::string_view bytes);

/// What it wants of a rank.
struct ControllerOrder {
  std::string type;   ///< "ClearWorkerMsg"
  std::string event;  ///< "Worker<rank><id>", the id is that of all ranks' orders
  std::string location;
  std::vector<std::int64_t> tokens;
  // Of a move; its location is the old one.
  std::string new_location = {};
  std::string target = {};  ///< what the other instance has registered for moves
  bool copy = true;         ///< its chunks stay
};
/// Errors: kCorrupt.
[[nodiscard]] Result<ControllerOrder> parse_controller_order(std::string_view bytes);
/// All ranks are asked to clear, and have one board: the second one finds nothing there any more,
/// but has to answer as the first.
struct LastClear {
  std::string event;
  std::int64_t num_tokens = 0;
};
/// Carries out an order for a rank, but for moves. What is not offered is answered by an error that
/// names it, which is logged too: the controller's own answer to its client does not have the text.
[[nodiscard]] std::string answer_controller_order(const ControllerOrder& order, std::int32_t rank,
                                                  ChunkBoard& board, LastClear& last_clear,
                                                  ChunkBoard::Clock::time_point now,
                                                  std::chrono::seconds pin_time);
[[nodiscard]] std::string controller_moved(std::int64_t num_tokens);
/// Logs it.
[[nodiscard]] std::string controller_error(const std::string& text);

}  // namespace troupe::lmcache
