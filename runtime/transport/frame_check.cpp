#include "runtime/transport/frame_check.hpp"

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstring>
#include <string_view>

namespace troupe {
namespace {

constexpr std::uint64_t kBaspVersion = 3;
enum Operation : std::uint8_t {
  kServerHandshake,
  kClientHandshake,
  kDirectMessage,
  kRoutedMessage,
  kMonitorMessage,
  kDownMessage,
  kHeartbeat,
  kNumOperations,
};
constexpr std::uint8_t kNamedReceiver = 1;     // of a direct message
constexpr std::uint8_t kSelectConnection = 2;  // of a client's handshake
constexpr std::size_t kMaxHandshakeBytes = 64 << 10;
/// Flag of a message id: this is the response to the request with that id.
constexpr std::uint64_t kAnswer = std::uint64_t{1} << 63;
/// Errors may contain a message, which may contain an error.
constexpr int kMaxDepth = 8;
constexpr std::string_view kMessage = "@<>";

Error malformed(std::string what) {
  return {ErrorCode::kInvalidArgument, "malformed frame: " + std::move(what), ""};
}

/// Reads the output of CAF's binary_serializer: big-endian numbers, lengths as LEB128. Every
/// function returns false if the input has something else.
class Cursor {
 public:
  explicit Cursor(std::span<const char> bytes) : rest_(bytes) {}

  [[nodiscard]] bool done() const { return rest_.empty(); }
  bool skip(std::size_t count) {
    if (count > rest_.size()) return false;
    rest_ = rest_.subspan(count);
    return true;
  }
  template <std::unsigned_integral T>
  bool number(T& value) {
    if (sizeof(T) > rest_.size()) return false;
    value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i)
      value = static_cast<T>(static_cast<std::uint64_t>(value) << 8 |
                             static_cast<unsigned char>(rest_[i]));
    return skip(sizeof(T));
  }
  /// The length of a list whose elements take at least a byte each.
  bool length(std::size_t& count) {
    count = 0;
    for (unsigned shift = 0; shift < 35; shift += 7) {
      std::uint8_t byte = 0;
      if (!number(byte)) return false;
      count |= std::size_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) return count <= rest_.size();
    }
    return false;
  }
  bool text(std::string_view& value) {
    std::size_t size = 0;
    if (!length(size)) return false;
    value = {rest_.data(), size};
    return skip(size);
  }
  bool texts() {
    std::size_t count = 0;
    std::string_view ignored;
    if (!length(count)) return false;
    while (count-- > 0) {
      if (!text(ignored)) return false;
    }
    return true;
  }
  bool node(std::array<char, kNodeIdBytes>& id) {
    if (id.size() > rest_.size()) return false;
    std::copy_n(rest_.begin(), id.size(), id.begin());
    return skip(id.size());
  }

 private:
  std::span<const char> rest_;
};

constexpr std::size_t kNodeKindBytes = 8;     // kind of the id
constexpr std::size_t kNodeProcessBytes = 4;  // process number, followed by the host id

bool all_zero(std::span<const char> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0; });
}

/// A node id of our kind, which has a fixed length, and not null.
bool is_node(const FrameVocabulary& vocabulary, std::span<const char, kNodeIdBytes> id) {
  return std::equal(id.begin(), id.begin() + kNodeKindBytes, vocabulary.self.begin()) &&
         !all_zero(id.subspan(kNodeKindBytes, kNodeProcessBytes)) &&
         !all_zero(id.subspan(kNodeKindBytes + kNodeProcessBytes));
}

/// An actor id and its node; null is 0 without a node.
bool skip_handle(const FrameVocabulary& vocabulary, Cursor& cursor) {
  std::uint64_t actor = 0;
  if (!cursor.number(actor)) return false;
  if (Cursor null = cursor; actor == 0) {
    std::uint64_t kind = 0;
    if (!null.number(kind) || kind != vocabulary.no_node) return false;
    cursor = null;
    return true;
  }
  std::array<char, kNodeIdBytes> node;
  return cursor.node(node) && is_node(vocabulary, node);
}

bool skip_message(const FrameVocabulary& vocabulary, Cursor& cursor, int depth);

bool skip_error(const FrameVocabulary& vocabulary, Cursor& cursor, int depth) {
  return cursor.skip(1 + sizeof(std::uint64_t)) && skip_message(vocabulary, cursor, depth + 1);
}

bool skip_field(const FrameVocabulary& vocabulary, FieldKind kind, Cursor& cursor, int depth) {
  switch (kind) {
    case FieldKind::kBytes: {
      std::uint32_t size = 0;
      return cursor.number(size) && cursor.skip(size);
    }
    case FieldKind::kHandle:
      return skip_handle(vocabulary, cursor);
    case FieldKind::kHandles: {
      std::size_t count = 0;
      if (!cursor.length(count)) return false;
      while (count-- > 0) {
        if (!skip_handle(vocabulary, cursor)) return false;
      }
      return true;
    }
    case FieldKind::kText: {
      std::string_view ignored;
      return cursor.text(ignored);
    }
    case FieldKind::kUnit:
      return true;
    case FieldKind::kNumber8:
      return cursor.skip(1);
    case FieldKind::kNumber16:
      return cursor.skip(2);
    case FieldKind::kNumber32:
      return cursor.skip(4);
    case FieldKind::kAtom:
    case FieldKind::kNumber64:
      return cursor.skip(8);
    case FieldKind::kError:
      return skip_error(vocabulary, cursor, depth);
    case FieldKind::kExit:
      return skip_handle(vocabulary, cursor) && skip_error(vocabulary, cursor, depth);
  }
  return false;
}

/// A message begins with the type names of its values: "@<>+a+b".
bool read_types(Cursor& cursor, std::string_view& types) {
  std::uint16_t number = 0;
  if (!cursor.number(number) || number != 0 || !cursor.text(types)) return false;
  if (!types.starts_with(kMessage)) return false;
  types.remove_prefix(kMessage.size());
  return types.empty() || types.size() > 1;
}

/// Calls on_type with each name of "+a+b" until it returns false.
template <class F>
bool for_each_type(std::string_view types, F on_type) {
  while (!types.empty()) {
    if (types.front() != '+') return false;
    types.remove_prefix(1);
    const std::size_t end = std::min(types.find('+'), types.size());
    if (!on_type(std::string(types.substr(0, end)))) return false;
    types.remove_prefix(end);
  }
  return true;
}

/// Skips the fields of an error after its code.
bool skip_message(const FrameVocabulary& vocabulary, Cursor& cursor, int depth) {
  std::string_view types;
  if (depth > kMaxDepth || !read_types(cursor, types)) return false;
  return for_each_type(types, [&](const std::string& name) {
    for (const auto* known : {&vocabulary.system, &vocabulary.types}) {
      if (const auto type = known->find(name); type != known->end())
        return skip_field(vocabulary, type->second, cursor, depth);
    }
    return false;
  });
}

constexpr std::string_view kExit = "+@exit";

/// Messages of CAF itself to actors of other nodes, besides its own frames.
bool is_system_message(std::string_view types) {
  return types.empty() || types == "+@unit" || types == "+@error" || types == kExit;
}

/// The two messages by which CAF introduces itself to a node.
Result<void> check_greeting(const FrameVocabulary& vocabulary, std::string_view types,
                            Cursor cursor, bool by_name) {
  std::uint64_t first = 0, second = 0;
  std::string_view text;
  bool whole = cursor.number(first);
  if (by_name) {
    whole = whole && types == "+@atom+@atom+@str" && cursor.number(second) && cursor.text(text) &&
            first == vocabulary.greeting[0] && second == vocabulary.greeting[1];
  } else {
    whole = whole && types == "+@atom+@str+@strong_actor_ptr+@str" && cursor.text(text) &&
            skip_handle(vocabulary, cursor) && cursor.text(text) &&
            first == vocabulary.greeting_answer;
  }
  if (!whole || !cursor.done()) return malformed("an invalid greeting");
  return {};
}

Result<void> check_message(const FrameVocabulary& vocabulary, std::span<const char> bytes,
                           bool by_name, bool is_answer) {
  Cursor cursor(bytes);
  std::size_t num_stages = 0;
  std::string_view types;
  if (!cursor.length(num_stages) || num_stages != 0)
    return malformed("a message with forwarding actors");
  if (!read_types(cursor, types)) return malformed("a message without types");
  if (by_name || types.starts_with("+@atom"))
    return check_greeting(vocabulary, types, cursor, by_name);
  const bool is_system = is_system_message(types);
  if (is_system && (types == kExit ? is_answer || !vocabulary.may_be_ended : !is_answer))
    return malformed("an unsolicited message '" + std::string(types) + "'");
  const auto& known = is_system ? vocabulary.system : vocabulary.types;
  std::string wrong;
  const bool whole = for_each_type(types, [&](const std::string& name) {
    const auto type = known.find(name);
    wrong = name;
    return type != known.end() && skip_field(vocabulary, type->second, cursor, 0);
  });
  if (!whole) return malformed("a message with an invalid '" + wrong.substr(0, 100) + "'");
  if (!cursor.done()) return malformed("trailing data after a message");
  return {};
}

}  // namespace

Result<std::size_t> FrameCheck::check_header(std::span<const char, kFrameHeaderBytes> bytes) {
  Cursor cursor(bytes);
  Header header;
  std::uint16_t padding = 0;
  cursor.number(header.operation);
  cursor.number(padding);
  cursor.number(header.flags);
  cursor.number(header.payload_bytes);
  cursor.number(header.operation_data);
  cursor.number(header.source);
  cursor.number(header.destination);
  if (header.operation >= kNumOperations)
    return malformed("type " + std::to_string(header.operation));
  if (vocabulary_ == nullptr) {
    if (header.payload_bytes > kMaxFrameBytes)
      return malformed("a length of " + std::to_string(header.payload_bytes));
    return header.payload_bytes;
  }
  const bool opens = header.operation == kServerHandshake || header.operation == kClientHandshake;
  const bool accepts = side_ == Session::Side::kAccepts;
  if (opens && (header.operation == kClientHandshake) != accepts)
    return malformed("a handshake of the wrong side");
  if (!opens && !knows_peer_) return malformed("no preceding handshake");
  if (header.operation == kServerHandshake && knows_peer_) return malformed("a second handshake");
  std::uint8_t flags = 0;
  if (header.operation == kClientHandshake) flags = kSelectConnection;
  if (header.operation == kDirectMessage) flags = kNamedReceiver;
  if (padding != 0 || (header.flags & ~flags) != 0)
    return malformed("flags " + std::to_string(header.flags));

  std::size_t min_bytes = 1, max_bytes = kMaxFrameBytes;
  bool has_source = false, has_destination = false, has_data = false;
  switch (header.operation) {
    case kServerHandshake:
      max_bytes = kMaxHandshakeBytes;
      has_data = true;
      if (header.operation_data != kBaspVersion)
        return malformed("version " + std::to_string(header.operation_data));
      break;
    case kClientHandshake:
      min_bytes = max_bytes = kNodeIdBytes;
      break;
    case kDirectMessage:
      // The sending actor may be null.
      has_source = header.source != 0;
      has_destination = true;
      has_data = header.operation_data != 0;
      if ((header.flags & kNamedReceiver) != 0 && header.destination != vocabulary_->greeted)
        return malformed("a message to an actor by its name");
      break;
    case kRoutedMessage:
      min_bytes = 2 * kNodeIdBytes + 1;
      has_source = header.source != 0;
      has_destination = true;
      has_data = header.operation_data != 0;
      break;
    case kMonitorMessage:
      min_bytes = max_bytes = 2 * kNodeIdBytes;
      has_destination = true;
      break;
    case kDownMessage:
      min_bytes = 2 * kNodeIdBytes + 1;
      has_source = true;
      break;
    default:  // a heartbeat
      min_bytes = max_bytes = 0;
      break;
  }
  if (header.payload_bytes < min_bytes || header.payload_bytes > max_bytes)
    return malformed("a length of " + std::to_string(header.payload_bytes));
  if ((header.source != 0) != has_source || (header.destination != 0) != has_destination ||
      (header.operation_data != 0) != has_data)
    return malformed("an invalid actor");
  header_ = header;
  return header.payload_bytes;
}

Result<FrameUse> FrameCheck::check_payload(std::span<const char> bytes) {
  if (vocabulary_ == nullptr) return FrameUse::kPass;
  const FrameVocabulary& vocabulary = *vocabulary_;
  if (header_.operation == kDirectMessage) {
    RETURN_IF_ERROR(check_message(vocabulary, bytes, (header_.flags & kNamedReceiver) != 0,
                                  (header_.operation_data & kAnswer) != 0));
    return FrameUse::kPass;
  }
  if (header_.operation == kHeartbeat) return FrameUse::kPass;
  Cursor cursor(bytes);
  std::array<char, kNodeIdBytes> source;
  if (!cursor.node(source) || !is_node(vocabulary, source) || source == vocabulary.self)
    return malformed("from an invalid node");
  if (knows_peer_ && source != peer_) return malformed("from a different node");
  std::array<char, kNodeIdBytes> destination;
  switch (header_.operation) {
    case kServerHandshake: {
      std::uint64_t actor = 0;
      if (!cursor.texts() || !cursor.number(actor) || !cursor.texts())
        return malformed("an invalid handshake");
      break;
    }
    case kRoutedMessage:
    case kMonitorMessage:
    case kDownMessage:
      if (!cursor.node(destination) || !is_node(vocabulary, destination))
        return malformed("to an invalid node");
      if (destination != vocabulary.self) return FrameUse::kDrop;
      if (header_.operation == kRoutedMessage) return malformed("a forwarded message");
      if (header_.operation == kDownMessage && !skip_error(vocabulary, cursor, 0))
        return malformed("a down message without a reason");
      break;
    default:
      break;
  }
  if (!cursor.done()) return malformed("trailing data");
  knows_peer_ = true;
  peer_ = source;
  return FrameUse::kPass;
}

}  // namespace troupe
