#pragma once
// What a peer may send in the frames of CAF's network protocol (BASP, version 3), of which CAF 0.17
// itself believes nearly everything: a handshake without content is a null pointer to it, a link
// message makes it take an actor for another kind of object, and a length is memory. Later versions
// of the protocol have the same header, and contents that CAF checks more closely itself.

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
/// A message of the greatest length, and the names and handles beside it.
inline constexpr std::size_t kMaxFrameBytes = (std::size_t{1} << 30) + (std::size_t{1} << 20);

/// How the values of a type are written.
enum class FieldKind : std::uint8_t {
  kBytes,     ///< our messages: their length, then their own format
  kHandle,    ///< an actor
  kHandles,   ///< a list of actors
  kText,      ///< of CAF's own messages, as all below
  kAtom,      ///< a word in 64 bits
  kUnit,      ///< nothing
  kNumber8,   ///< of so many bits
  kNumber16,  //
  kNumber32,  //
  kNumber64,  //
  kError,     //
  kExit,      ///< an actor is to end, with an error as the reason
};

/// What the nodes of this build say to each other.
struct FrameVocabulary {
  std::array<char, kNodeIdBytes> self{};    ///< this node's id, as it is written
  bool may_be_ended = true;                 ///< by another node: actors of this one
  std::uint64_t no_node = 0;                ///< the word that stands for none
  std::map<std::string, FieldKind> types;   ///< by name: what messages between actors consist of
  std::map<std::string, FieldKind> system;  ///< the same of CAF's own messages and errors
  /// What CAF says to the actor of this name in every node that it gets to know, and the answer's
  /// first word.
  std::uint64_t greeted = 0;
  std::array<std::uint64_t, 2> greeting{};
  std::uint64_t greeting_answer = 0;
};

/// Of one connection. Frames pass that CAF's own side would send: a handshake first and of the
/// right kind, from another node than this one; then messages to actors of this node, of known
/// types and whole; news of actors, to this node. No node forwards messages for others. An error is
/// an answer, or none: CAF ends an actor that is told one unasked.
class FrameCheck {
 public:
  /// `vocabulary`: none with CAF 0.18 and later, where types and lengths of frames alone are
  /// checked here. `side`: ours.
  FrameCheck(std::shared_ptr<const FrameVocabulary> vocabulary, Session::Side side)
      : vocabulary_(std::move(vocabulary)), side_(side) {}

  /// The number of bytes that follow. Errors: kInvalidArgument, as of all here.
  [[nodiscard]] Result<std::size_t> check_header(std::span<const char, kFrameHeaderBytes> bytes);
  /// Those bytes. Pre: the last header was one of them.
  [[nodiscard]] Result<void> check_payload(std::span<const char> bytes);

 private:
  struct Header {
    std::uint8_t operation = 0, flags = 0;
    std::uint32_t payload_bytes = 0;
    std::uint64_t operation_data = 0, source = 0, destination = 0;
  };

  std::shared_ptr<const FrameVocabulary> vocabulary_;
  Session::Side side_;
  Header header_;
  bool knows_peer_ = false;  // it has said its id
  std::array<char, kNodeIdBytes> peer_{};
};

}  // namespace troupe
