#pragma once
// Frames of CAF's network protocol as a peer writes them, and a session that brings them in pieces.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/transport/frame_gate.hpp"

namespace troupe {

inline std::string number_of(std::uint64_t value, int num_bytes) {
  std::string text;
  for (int i = num_bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}

inline std::string text_of(std::string_view text) {  // shorter than 128
  return static_cast<char>(text.size()) + std::string(text);
}

inline std::string node_of(char id) {
  return number_of(0x1234, 8) + number_of(77, 4) + std::string(20, id);
}

constexpr char kSelf = 's', kPeer = 'p';

inline std::string handle_of(std::uint64_t actor, char node) {
  return number_of(actor, 8) + (actor == 0 ? number_of(0xf, 8) : node_of(node));
}

struct FrameFields {
  int operation = 0, flags = 0;
  std::uint64_t data = 0, source = 0, destination = 0;
  std::int64_t announced = -1;  ///< -1: as it is
};

inline std::string frame_of(const FrameFields& fields, const std::string& payload = "") {
  const auto size =
      fields.announced < 0 ? payload.size() : static_cast<std::uint64_t>(fields.announced);
  return number_of(static_cast<std::uint64_t>(fields.operation), 1) + number_of(0, 2) +
         number_of(static_cast<std::uint64_t>(fields.flags), 1) + number_of(size, 4) +
         number_of(fields.data, 8) + number_of(fields.source, 8) +
         number_of(fields.destination, 8) + payload;
}

/// The payload of a direct message. `values`: as they are written.
inline std::string message_of(std::string_view types, const std::string& values) {
  return number_of(0, 1) + number_of(0, 2) + text_of("@<>" + std::string(types)) + values;
}

inline std::string error_of(int code) {
  return number_of(static_cast<std::uint64_t>(code), 1) + number_of(5, 8) + number_of(0, 2) +
         text_of("@<>");
}

inline std::shared_ptr<const FrameVocabulary> small_vocabulary() {
  FrameVocabulary words;
  const std::string self = node_of(kSelf);
  std::copy(self.begin(), self.end(), words.self.begin());
  words.no_node = 0xf;
  words.types = {
      {"Step", FieldKind::kBytes}, {"Actor", FieldKind::kHandle}, {"Actors", FieldKind::kHandles}};
  words.system = {{"@unit", FieldKind::kUnit},
                  {"@error", FieldKind::kError},
                  {"@exit", FieldKind::kExit},
                  {"@str", FieldKind::kText}};
  words.greeted = 900;
  words.greeting = {901, 902};
  words.greeting_answer = 903;
  return std::make_shared<const FrameVocabulary>(std::move(words));
}

/// Brings its input in pieces of a size, or of sizes that the input chooses itself.
class Pieces : public Session {
 public:
  Pieces(std::string_view input, std::size_t piece) : input_(input), piece_(piece) {}

  std::optional<std::size_t> read(std::span<char> into) override {
    const std::size_t size = std::min({into.size(), input_.size(), piece_});
    std::copy_n(input_.begin(), size, into.begin());
    input_.remove_prefix(size);
    return size;
  }
  std::optional<std::size_t> write(std::span<const char> from) override { return from.size(); }
  [[nodiscard]] bool done() const { return input_.empty(); }

 private:
  std::string_view input_;
  const std::size_t piece_;
};

struct Passed {
  std::string frames;  ///< what came through
  std::string error;
};

/// Reads what a gate lets through, as CAF does: a header, then what it announces.
inline Passed pass(std::string_view input, Session::Side side, std::size_t piece) {
  const auto session = std::make_shared<Pieces>(input, piece);
  FrameGate gate(session, FrameCheck(small_vocabulary(), side));
  Passed passed;
  std::string buffer(1000, '\0');
  while (true) {
    const auto count = gate.read(buffer);
    if (!count) break;
    passed.frames.append(buffer, 0, *count);
    if (*count == 0 && session->done() && gate.num_ready() == 0) break;
  }
  passed.error = gate.error();
  return passed;
}

}  // namespace troupe
