#pragma once
// The choice of an encoder for an item.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/processors/coordinator.hpp"

namespace troupe {

/// Owns what is known of the encoders: their load, and the items whose outputs they keep. Used by
/// the EncoderRouter of each process.
///
/// An item goes to an encoder that has its output; else to the first one in an order that depends
/// on the item alone (rendezvous hashing, Thaler and Ravishankar 1998), so that all processes
/// choose the same one, and most items keep theirs when one joins or leaves. One that has kMaxAhead
/// more pending items than another is replaced by the least busy one.
class EncoderCoordinator {
 public:
  static constexpr std::int32_t kMaxAhead = 4;
  static constexpr std::size_t kMaxKnownItems = 1 << 16;  ///< per encoder

  struct Encoder {
    std::string name;
    std::uint64_t id = 0;  ///< of the actor: another one, that has nothing, if it was restarted
    bool operator==(const Encoder&) const = default;
  };
  /// All that there are. What is known of those that stay is kept.
  void set_encoders(std::span<const Encoder> encoders);

  struct Choice {
    std::uint64_t encoder = 0;
    bool has_output = false;  ///< it is likely to be there
  };
  /// None of `tried`; nothing: there is no other one.
  [[nodiscard]] std::optional<Choice> choose(const std::string& identifier,
                                             std::span<const std::uint64_t> tried = {}) const;
  /// All of them, those first that are likely to have the output.
  [[nodiscard]] std::vector<std::uint64_t> candidates(const std::string& identifier) const;

  void sent(std::uint64_t encoder);
  /// It has answered: whether the output is there now.
  void answered(std::uint64_t encoder, const std::string& identifier, bool has_output);

 private:
  struct Slot {
    Encoder encoder;
    std::int32_t num_in_flight = 0;
    RecentMap<std::string, bool> outputs{kMaxKnownItems};
    [[nodiscard]] bool has(const std::string& identifier) const {
      const bool* const known = outputs.find(identifier);
      return known != nullptr && *known;
    }
  };
  [[nodiscard]] Slot* find(std::uint64_t encoder);

  std::vector<Slot> slots_;
};

}  // namespace troupe
