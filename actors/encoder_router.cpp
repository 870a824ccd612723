// The EncoderRouter: has items encoded by the topology's encoders, and finds their outputs there.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "actors/deadlines.hpp"
#include "actors/spawn.hpp"
#include "runtime/base/log.hpp"
#include "runtime/ec_transfer/remote_outputs.hpp"
#include "runtime/processors/encoder_coordinator.hpp"

namespace troupe {
namespace encoder_router {
namespace {

using namespace std::chrono_literals;

/// An item on which so many encoders have ended is left to the workers.
constexpr std::size_t kMaxTries = 2;
constexpr auto kFindDeadline = 2s;

/// Items that are encoded for one InputProcessor.
struct EncodeBatch {
  caf::typed_response_promise<Status> promise;
  std::size_t num_left = 0;
};

/// A question that an encoder has: requests to a node that is gone are not answered.
struct OpenQuestion {
  std::uint64_t encoder = 0;
  // Of an item that is encoded.
  std::shared_ptr<EncodeBatch> batch;  ///< null: an output is looked for
  MultiModalFeature item;
  std::vector<std::uint64_t> tried;  ///< encoders that have ended on it
  // Of an output that is looked for.
  FindEncoderOutput what;
  std::deque<std::uint64_t> candidates;  ///< to be asked after this one
  caf::typed_response_promise<EncoderOutputFound> promise;
};

struct EncoderRouterState {
  EncoderRouterState() = default;
  static inline const char* name = "encoder_router";

  EncoderCoordinator core;
  std::map<std::uint64_t, EncoderActor> encoders;  ///< by number
  std::map<std::string, std::uint64_t> names;      ///< of those in `encoders`
  std::uint64_t num_encoders = 0;                  ///< so far
  std::map<std::uint64_t, OpenQuestion> questions;
  std::uint64_t num_questions = 0;  ///< so far
};

using Self = EncoderRouterActor::stateful_pointer<EncoderRouterState>;

void encode(Self self, OpenQuestion question);
void find(Self self, OpenQuestion question);

std::optional<OpenQuestion> take_question(Self self, std::uint64_t number) {
  auto taken = state(self).questions.extract(number);
  if (taken.empty()) return std::nullopt;  // its encoder has ended
  return std::move(taken.mapped());
}

/// Encoded, or left to the workers.
void end_item(const OpenQuestion& question) {
  if (--question.batch->num_left == 0) question.batch->promise.deliver(Status{});
}

void on_encoded(Self self, std::uint64_t number, const ItemEncoded& encoded) {
  auto question = take_question(self, number);
  if (!question) return;
  const bool is_there = !encoded.needs_data && !encoded.error;
  state(self).core.answered(question->encoder, question->item.identifier, is_there);
  if (encoded.needs_data) return encode(self, *std::move(question));
  if (encoded.error)
    log_warning("an encoder refused an item: a worker encodes it",
                kv("identifier", question->item.identifier), kv("error", encoded.error->message));
  end_item(*question);
}

void encode(Self self, OpenQuestion question) {
  EncoderRouterState& router = state(self);
  const auto choice = question.tried.size() >= kMaxTries
                          ? std::nullopt
                          : router.core.choose(question.item.identifier, question.tried);
  if (!choice) return end_item(question);
  EncodeItem what{question.item};
  if (choice->has_output) what.item.data = nullptr;
  question.encoder = choice->encoder;
  router.core.sent(choice->encoder);
  const std::uint64_t number = ++router.num_questions;
  router.questions.emplace(number, std::move(question));
  ask(self, router.encoders.at(choice->encoder), kEncodeDeadline, std::move(what))
      .then([=](const ItemEncoded& encoded) { on_encoded(self, number, encoded); },
            [=](const caf::error& error) {
              on_encoded(self, number,
                         {.error = Error{ErrorCode::kUnavailable, to_text(error, self->system())}});
            });
}

void on_found(Self self, std::uint64_t number, EncoderOutputFound found) {
  auto question = take_question(self, number);
  if (!question) return;
  if (found.found)
    question->promise.deliver(std::move(found));
  else
    find(self, *std::move(question));
}

/// Asks the next one.
void find(Self self, OpenQuestion question) {
  EncoderRouterState& router = state(self);
  while (!question.candidates.empty() && !router.encoders.contains(question.candidates.front()))
    question.candidates.pop_front();
  if (question.candidates.empty()) {
    question.promise.deliver(EncoderOutputFound{});
    return;
  }
  question.encoder = question.candidates.front();
  question.candidates.pop_front();
  const EncoderActor& encoder = router.encoders.at(question.encoder);
  const FindEncoderOutput what = question.what;
  const std::uint64_t number = ++router.num_questions;
  router.questions.emplace(number, std::move(question));
  ask(self, encoder, kFindDeadline, what)
      .then([=](EncoderOutputFound& found) { on_found(self, number, std::move(found)); },
            [=](const caf::error&) { on_found(self, number, {}); });
}

/// What it was asked goes to others.
void lose_encoder(Self self, std::uint64_t encoder) {
  EncoderRouterState& router = state(self);
  if (router.encoders.erase(encoder) == 0) return;
  std::erase_if(router.names, [&](const auto& name) { return name.second == encoder; });
  std::vector<EncoderCoordinator::Encoder> left;
  for (const auto& [name, id] : router.names) left.push_back({name, id});
  router.core.set_encoders(left);
  std::vector<OpenQuestion> lost;
  for (auto place = router.questions.begin(); place != router.questions.end();) {
    if (place->second.encoder == encoder) {
      lost.push_back(std::move(place->second));
      place = router.questions.erase(place);
    } else {
      ++place;
    }
  }
  if (!lost.empty())
    log_warning("an encoder has ended", kv("items_and_lookups", lost.size()),
                kv("encoders_left", left.size()));
  for (OpenQuestion& question : lost) {
    question.tried.push_back(encoder);
    if (question.batch != nullptr)
      encode(self, std::move(question));
    else
      find(self, std::move(question));
  }
}

void change_encoders(Self self, const EncodersChanged& changed, const ActorHandles& handles) {
  EncoderRouterState& router = state(self);
  std::map<std::string, EncoderActor> now;
  for (std::size_t i = 0; i < std::min(changed.names.size(), handles.size()); ++i)
    if (handles[i]) now.emplace(changed.names[i], caf::actor_cast<EncoderActor>(handles[i]));
  std::vector<std::uint64_t> lost;
  for (const auto& [name, id] : router.names) {
    const auto found = now.find(name);
    if (found == now.end() || found->second != router.encoders.at(id)) lost.push_back(id);
  }
  for (const auto& [name, encoder] : now) {
    const auto known = router.names.find(name);
    if (known != router.names.end() && router.encoders.at(known->second) == encoder) continue;
    const std::uint64_t id = ++router.num_encoders;
    router.encoders.emplace(id, encoder);
    router.names.insert_or_assign(name, id);
    self->monitor(caf::actor_cast<caf::actor>(encoder));
  }
  std::vector<EncoderCoordinator::Encoder> all;
  for (const auto& [name, id] : router.names) all.push_back({name, id});
  router.core.set_encoders(all);
  for (const std::uint64_t id : lost) lose_encoder(self, id);
}

EncoderRouterActor::behavior_type encoder_router_behavior(Self self) {
  self->set_down_handler([self](const caf::down_msg& down) {
    const auto& encoders = state(self).encoders;
    const auto found = std::find_if(encoders.begin(), encoders.end(), [&](const auto& entry) {
      return entry.second.address() == down.source;
    });
    if (found != encoders.end()) lose_encoder(self, found->first);
  });
  return {
      [self](const EncodersChanged& changed, const ActorHandles& handles) {
        change_encoders(self, changed, handles);
      },
      [self](EncodeItems& what) -> caf::result<Status> {
        auto promise = self->make_response_promise<Status>();
        auto batch = std::make_shared<EncodeBatch>();
        batch->promise = promise;
        batch->num_left = what.items.size() + 1;
        for (MultiModalFeature& item : what.items)
          encode(self, {.batch = batch, .item = std::move(item)});
        end_item({.batch = batch});
        return promise;
      },
      [self](const FindEncoderOutput& what) -> caf::result<EncoderOutputFound> {
        auto promise = self->make_response_promise<EncoderOutputFound>();
        const auto candidates = state(self).core.candidates(what.identifier);
        find(self, {.what = what,
                    .candidates = {candidates.begin(), candidates.end()},
                    .promise = promise});
        return promise;
      },
  };
}

/// Asks through the EncoderRouter of this process.
class RoutedOutputs final : public RemoteOutputs {
 public:
  RoutedOutputs(caf::actor_system& system, EncoderRouterActor router)
      : system_(system), router_(std::move(router)) {}

  bool has(const std::string& encoder_key, const std::string& identifier) override {
    const auto found = ask_router({.encoder_key = encoder_key, .identifier = identifier});
    return found.ok() && found->found;
  }
  Result<StoredOutput> load(const std::string& encoder_key, const std::string& identifier,
                            const OutputShape& shape) override {
    ASSIGN_OR_RETURN(const EncoderOutputFound found,
                     ask_router({.encoder_key = encoder_key,
                                 .identifier = identifier,
                                 .num_rows = shape.num_rows,
                                 .hidden_size = shape.hidden_size}));
    if (!found.found || found.values == nullptr)
      return Error{ErrorCode::kNotFound, "no encoder has it (any more)"};
    if (found.values->size() != shape.num_bytes())
      return Error{ErrorCode::kCorrupt,
                   "an encoder has sent " + std::to_string(found.values->size()) +
                       " bytes, expected " + std::to_string(shape.num_bytes())};
    const auto* const values = reinterpret_cast<const float*>(found.values->data());
    return StoredOutput{found.values, {values, shape.num_values()}};
  }

 private:
  Result<EncoderOutputFound> ask_router(const FindEncoderOutput& what) {
    caf::scoped_actor self{system_};
    Result<EncoderOutputFound> answer = Error{ErrorCode::kUnavailable, "no answer", ""};
    ask(self.ptr(), router_, 2 * kFindDeadline, what)
        .receive([&](EncoderOutputFound& found) { answer = std::move(found); },
                 [&](const caf::error& error) {
                   answer = Error{ErrorCode::kUnavailable, to_text(error, system_), ""};
                 });
    return answer;
  }

  caf::actor_system& system_;
  EncoderRouterActor router_;
};

}  // namespace
}  // namespace encoder_router

EncoderRouterActor spawn_encoder_router(caf::actor_system& system) {
  return system.spawn(encoder_router::encoder_router_behavior);
}

std::shared_ptr<RemoteOutputs> make_remote_outputs(caf::actor_system& system,
                                                   EncoderRouterActor router) {
  return std::make_shared<encoder_router::RoutedOutputs>(system, std::move(router));
}

}  // namespace troupe
