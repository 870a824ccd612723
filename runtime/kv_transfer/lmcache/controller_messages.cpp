#include "runtime/kv_transfer/lmcache/controller_messages.hpp"

#include "messages/msgpack.hpp"
#include "messages/msgpack_reader.hpp"
#include "runtime/base/log.hpp"

namespace troupe::lmcache {
namespace {

using msgspec::Reader;
using msgspec::Writer;

void put_key(Writer& writer, PythonInt key) {
  if (key.negative)
    writer.put(static_cast<std::int64_t>(0 - key.magnitude));
  else
    writer.put(key.magnitude);
}

const char* name_of(Location location) {
  return kLocationNames[static_cast<std::size_t>(location)];
}

/// A message with so many fields besides its type.
class Message {
 public:
  Message(const char* type, std::uint32_t num_fields) : writer_(out_) {
    writer_.put_map(num_fields + 1);
    field("type", type);
  }
  /// The instance and the worker.
  Message(const char* type, const ControlledWorker& worker, std::uint32_t num_fields)
      : Message(type, num_fields + 2) {
    field("instance_id", worker.instance);
    field("worker_id", worker.worker);
  }
  template <class T>
  Message& field(const char* name, const T& value) {
    writer_.put(name);
    writer_.put(value);
    return *this;
  }
  /// `put` writes each element.
  template <class Elements, class Put>
  Message& array(const char* name, const Elements& elements, Put&& put) {
    writer_.put(name);
    writer_.put_array(static_cast<std::uint32_t>(elements.size()));
    for (const auto& element : elements) put(writer_, element);
    return *this;
  }
  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  std::string out_;
  Writer writer_;
};

std::string with_address(const char* type, const ControlledWorker& worker, bool has_peer) {
  Message message(type, worker, has_peer ? 3 : 2);
  message.field("ip", worker.ip).field("port", worker.port);
  if (has_peer) message.field("peer_init_url", worker.store_url);
  return message.take();
}

std::string text_or_nil(Reader& reader) { return reader.nil() ? std::string() : reader.text(); }

/// Of a heartbeat: whether one of its commands asks for all keys.
bool reads_sync_command(Reader& reader) {
  bool wants_sync = false;
  for (std::size_t left = reader.array(); reader.ok() && left > 0; --left)
    reader.fields([&](const std::string& name) {
      if (name == "command_type")
        wants_sync |= reader.text() == "full_sync";
      else
        reader.skip();
    });
  return wants_sync;
}

}  // namespace

std::string controller_register(const ControlledWorker& worker) {
  return with_address("RegisterMsg", worker, /*has_peer=*/true);
}
std::string controller_deregister(const ControlledWorker& worker) {
  return with_address("DeRegisterMsg", worker, /*has_peer=*/false);
}
std::string controller_heartbeat(const ControlledWorker& worker) {
  return with_address("HeartbeatMsg", worker, /*has_peer=*/true);
}

std::string controller_operations(const ControlledWorker& worker, Location location,
                                  std::span<const ChunkBoard::Change> changes,
                                  std::uint64_t first_number) {
  return Message("BatchedKVOperationMsg", worker, 2)
      .field("location", name_of(location))
      .array("operations", changes,
             [&](Writer& writer, const ChunkBoard::Change& change) {
               writer.put_map(3);
               writer.put("op_type"), writer.put(change.is_there ? "admit" : "evict");
               writer.put("key"), put_key(writer, change.key);
               writer.put("seq_num"), writer.put(first_number++);
             })
      .take();
}

std::string controller_sync_start(const ControlledWorker& worker, const FullSync& sync) {
  return Message("FullSyncStartMsg", worker, 4)
      .field("location", name_of(sync.location))
      .field("sync_id", sync.id)
      .field("total_keys", static_cast<std::uint64_t>(sync.num_keys))
      .field("batch_count", static_cast<std::uint64_t>(sync.num_batches))
      .take();
}
std::string controller_sync_batch(const ControlledWorker& worker, const FullSync& sync,
                                  std::size_t number, std::span<const PythonInt> keys) {
  return Message("FullSyncBatchMsg", worker, 4)
      .field("location", name_of(sync.location))
      .field("sync_id", sync.id)
      .field("batch_id", static_cast<std::uint64_t>(number))
      .array("keys", keys, put_key)
      .take();
}
std::string controller_sync_end(const ControlledWorker& worker, const FullSync& sync) {
  return Message("FullSyncEndMsg", worker, 3)
      .field("location", name_of(sync.location))
      .field("sync_id", sync.id)
      .field("actual_total_keys", static_cast<std::uint64_t>(sync.num_keys))
      .take();
}
std::string controller_sync_status(const ControlledWorker& worker, const FullSync& sync) {
  return Message("FullSyncStatusMsg", worker, 1).field("sync_id", sync.id).take();
}

Result<ControllerReply> parse_controller_reply(std::string_view bytes) {
  ControllerReply reply;
  bool has_missing = false;
  Reader reader(bytes);
  reader.fields([&](const std::string& name) {
    if (name == "type") {
      reply.type = reader.text();
    } else if (name == "extra_config") {
      reader.fields([&](const std::string& key) {
        if (key == "heartbeat_url")
          reply.heartbeat_url = reader.text();
        else
          reader.skip();
      });
    } else if (name == "commands") {
      reply.wants_sync = reads_sync_command(reader);
    } else if (name == "accepted") {
      reply.accepted = reader.boolean();
    } else if (name == "is_complete") {
      reply.is_complete = reader.boolean();
    } else if (name == "missing_batches") {
      const std::size_t count = reader.array();
      has_missing = count > 0;
      for (std::size_t left = count; reader.ok() && left > 0; --left) reader.skip();
    } else if (name == "error" || name == "error_msg") {
      reply.error = text_or_nil(reader);
    } else {
      reader.skip();
    }
  });
  if (!reader.at_end())
    return Error{ErrorCode::kCorrupt, "a reply of LMCache's controller cannot be read", {}};
  reply.is_complete = reply.is_complete && !has_missing;
  return reply;
}

Result<ControllerOrder> parse_controller_order(std::string_view bytes) {
  ControllerOrder order;
  Reader reader(bytes);
  reader.fields([&](const std::string& name) {
    if (name == "type") {
      order.type = reader.text();
    } else if (name == "worker_event_id") {
      order.event = reader.text();
    } else if (name == "location" || name == "old_position") {
      order.location = reader.text();
    } else if (name == "tokens" && !reader.nil()) {
      for (std::size_t left = reader.array(); reader.ok() && left > 0; --left)
        order.tokens.push_back(reader.integer());
    } else if (name == "new_position") {
      std::size_t left = reader.array();
      if (left > 0) order.target = reader.text();
      if (left > 1) order.new_location = reader.text();
      for (; reader.ok() && left > 2; --left) reader.skip();
    } else if (name == "copy" && !reader.nil()) {
      order.copy = reader.boolean();
    } else if (name != "tokens" && name != "copy") {
      reader.skip();
    }
  });
  if (!reader.at_end())
    return Error{ErrorCode::kCorrupt, "an order of LMCache's controller cannot be read", {}};
  return order;
}

std::string controller_moved(std::int64_t num_tokens) {
  return Message("MoveWorkerRetMsg", 1).field("num_tokens", num_tokens).take();
}

std::string controller_error(const std::string& text) {
  log_warning("LMCache's controller orders what cannot be done", kv("reason", text));
  return Message("ErrorMsg", 1).field("error", text).take();
}

std::string answer_controller_order(const ControllerOrder& order, std::int32_t rank,
                                    ChunkBoard& board, LastClear& last_clear,
                                    ChunkBoard::Clock::time_point now,
                                    std::chrono::seconds pin_time) {
  if (order.type == "HealthWorkerMsg")
    return Message("HealthWorkerRetMsg", 1).field("error_code", 0).take();
  const bool is_pin = order.type == "PinWorkerMsg";
  if (!is_pin && order.type != "ClearWorkerMsg")
    return controller_error(order.type + " is not offered here");
  const auto location = parse_location(order.location);
  if (!location)
    return controller_error("the location is " + order.location + ", it must be " +
                            kLocationNames[0] + " or " + kLocationNames[1]);
  if (is_pin)
    return Message("PinWorkerRetMsg", 1)
        .field("num_tokens", board.pin(*location, order.tokens, now + pin_time))
        .take();
  const std::string prefix = "Worker" + std::to_string(rank);
  const std::string event =
      order.event.starts_with(prefix) ? order.event.substr(prefix.size()) : order.event;
  const std::int64_t num_tokens = board.clear(*location, now);
  if (event != last_clear.event) last_clear = {event, num_tokens};
  return Message("ClearWorkerRetMsg", 1).field("num_tokens", last_clear.num_tokens).take();
}

}  // namespace troupe::lmcache
