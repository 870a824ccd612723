#pragma once
// Validates the frames of CAF's network protocol (BASP, version 3), which CAF 0.17 trusts almost
// completely: an empty handshake leads to a null pointer, a link message to a bad cast of an actor,
// and a length to an allocation. Later versions of the protocol have the same header, and contents
// that CAF validates itself.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/result.hpp"
#include "runtime/transport/session.hpp"

namespace troupe {

inline constexpr std::size_t kFrameHeaderBytes = 32;
inline constexpr std::size_t kNodeIdBytes = 32;
/// The largest message, plus names and handles.
inline constexpr std::size_t kMaxFrameBytes = (std::size_t{1} << 30) + (std::size_t{1} << 20);

/// The serialised form of a type's values.
enum class FieldKind : std::uint8_t {
  kBytes,     ///< our messages: length, then our own format
  kHandle,    ///< an actor
  kHandles,   ///< a list of actors
  kText,      ///< in CAF's own messages, as all below
  kAtom,      ///< a word in 64 bits
  kUnit,      ///< nothing
  kNumber8,   ///< of 8 bits etc.
  kNumber16,  //
  kNumber32,  //
  kNumber64,  //
  kError,     //
  kExit,      ///< an exit message with an error as the reason
};

/// Types and constants of the protocol between nodes of this build.
struct FrameVocabulary {
  std::array<char, kNodeIdBytes> self{};    ///< this node's id, serialised
  bool may_be_ended = true;                 ///< whether other nodes may end actors of this one
  std::uint64_t no_node = 0;                ///< the serialised null node
  std::map<std::string, FieldKind> types;   ///< types of messages between actors, by name
  std::map<std::string, FieldKind> system;  ///< types of CAF's own messages and errors
  /// The actor that CAF greets in every new node, and the first word of its reply.
  std::uint64_t greeted = 0;
  std::array<std::uint64_t, 2> greeting{};
  std::uint64_t greeting_answer = 0;
};

/// What to do with a valid frame.
enum class FrameUse : std::uint8_t { kPass, kDrop };

/// Checks one connection. Accepts only frames that CAF itself would send: first a handshake of the
/// right kind, from another node; then complete messages of known types to actors of this node, and
/// notifications about actors for this node. Frames for a third node are dropped: CAF sends them to
/// a neighbour while the direct connection to a node that has just ended is closed, and nodes do
/// not forward. An error is valid only as a response: CAF ends an actor that receives an
/// unsolicited one.
class FrameCheck {
 public:
  /// `vocabulary`: null with CAF 0.18 and later, where only types and lengths of frames are checked
  /// here. `side`: ours.
  FrameCheck(std::shared_ptr<const FrameVocabulary> vocabulary, Session::Side side)
      : vocabulary_(std::move(vocabulary)), side_(side) {}

  /// The size of the payload. Errors: kInvalidArgument, as of all functions here.
  [[nodiscard]] Result<std::size_t> check_header(std::span<const char, kFrameHeaderBytes> bytes);
  /// Checks the payload. Pre: the last header announced one.
  [[nodiscard]] Result<FrameUse> check_payload(std::span<const char> bytes);

 private:
  struct Header {
    std::uint8_t operation = 0, flags = 0;
    std::uint32_t payload_bytes = 0;
    std::uint64_t operation_data = 0, source = 0, destination = 0;
  };

  std::shared_ptr<const FrameVocabulary> vocabulary_;
  Session::Side side_;
  Header header_;
  bool knows_peer_ = false;  // its id is known
  std::array<char, kNodeIdBytes> peer_{};
};

}  // namespace troupe
