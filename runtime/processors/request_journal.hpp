#pragma once
// What it takes to run every live request again on another engine.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "messages/engine_output.hpp"
#include "messages/request.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// Owns every request that has not ended: as it came, and what its client has been given of it.
/// When the engine is replaced, all of them run again behind their last token, in the order of
/// their arrival. While there is no engine they wait here. Called by the Frontend actor.
///
/// Quarantine: a request that was in an engine two of whose kind crashed is suspect. Suspects run
/// first, one at a time and nothing beside them, until they have ended; whose third crash comes
/// while it is alone fails with an error.
///
/// Every request that is added ends once: with a finished output that `record` is shown, or with
/// one that a function here returns.
class RequestJournal {
 public:
  static constexpr std::size_t kMaxWaiting = 1024;  ///< requests that wait for an engine
  static constexpr int kSuspectCrashes = 2;
  static constexpr int kMaxCrashes = 3;
  /// A request for one final output is run as one for deltas of so many tokens, so that they are
  /// not lost with the engine. (Who answers the client joins them.)
  static constexpr std::int32_t kFinalOnlyInterval = 16;

  /// The request waits until take_submissions hands it out. Pre: its id is new. Error: kOverloaded,
  /// as many wait already.
  Result<void> add(GenerateRequest request);

  /// What the engine is to be given now, oldest first; nothing while there is none.
  [[nodiscard]] std::vector<GenerateRequest> take_submissions();

  /// Notes what clients are given.
  void record(const RequestOutputs& outputs);

  struct Aborted {
    std::vector<AbortRequests> to_engine;  ///< by request, with the ids of all its samples
    RequestOutputs ended;                  ///< those that the engine does not have
  };
  /// Clients are gone, or have waited long enough; ids of requests. Unknown ones are ignored.
  [[nodiscard]] Aborted abort(std::span<const RequestId> ids);
  [[nodiscard]] Aborted abort_all();

  /// From now on nothing is handed out. Outputs of the lost engine may still be recorded.
  void engine_lost() { has_engine_ = false; }

  struct Replaced {
    std::size_t num_resubmissions = 0;  ///< requests that will run again
    RequestOutputs ended;               ///< those that will not
  };
  /// The lost engine's outputs are not recorded any more: its requests wait again. `crashed`: it
  /// fell by itself.
  [[nodiscard]] Replaced engine_replaced(bool crashed);

  /// There is an engine to give requests to.
  void engine_ready() { has_engine_ = true; }

  /// There will be no engine: ends all.
  [[nodiscard]] RequestOutputs fail_all(const Error& error);

  /// Ends those of the requests that wait whose time is up. Seconds, wall clock.
  [[nodiscard]] RequestOutputs expire(double now);
  /// The wall-clock second at which the next one is; infinity if there is none.
  [[nodiscard]] double next_deadline() const;

  [[nodiscard]] std::size_t num_live() const noexcept { return entries_.size(); }
  /// Suspects wait, or one is running alone.
  [[nodiscard]] bool in_quarantine() const noexcept {
    return !suspects_.empty() || quarantined_.has_value();
  }

 private:
  struct Entry {
    GenerateRequest request;  // `emitted` grows with what is recorded
    std::uint64_t sequence = 0;
    int num_crashes = 0;
    bool in_engine = false;
    bool aborted = false;  // the engine has been told
  };
  using Entries = std::unordered_map<RequestId, Entry>;
  // By sequence: the order of arrival.
  using Queue = std::map<std::uint64_t, RequestId>;

  [[nodiscard]] bool waits(const Entry& entry) const { return !entry.in_engine || !has_engine_; }
  void note(Entry& entry, const CompletionOutput& output);
  GenerateRequest hand_out(Queue& queue, Queue::iterator next);
  void take_back(Entry& entry);
  void abort_one(RequestId id, Aborted& aborted);
  void end(Entries::iterator entry);
  void end_with(Entries::iterator entry, std::optional<Error> error,
                std::optional<FinishReason> reason, RequestOutputs& ended);

  Entries entries_;
  Queue waiting_;
  Queue suspects_;  // wait, too, and before the others
  std::optional<RequestId> quarantined_;
  std::size_t num_in_engine_ = 0;
  std::uint64_t next_sequence_ = 0;
  bool has_engine_ = false;
};

}  // namespace troupe
