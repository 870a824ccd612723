#pragma once
// An engine whose outputs the test decides.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "messages/engine_output.hpp"
#include "runtime/http/engine_port.hpp"

namespace troupe {

class FakeEngine final : public EnginePort {
 public:
  RequestId allocate_ids(std::int32_t count) override {
    const std::lock_guard lock(mutex_);
    const RequestId first{next_id_};
    next_id_ += static_cast<std::uint64_t>(count);
    return first;
  }
  std::uint64_t draw_key() override { return ++num_keys_; }
  void submit(SubmitRequest submission) override {
    GenerateRequest& request = submission.request;
    std::function<void(const GenerateRequest&)> react;
    {
      const std::lock_guard lock(mutex_);
      submitted_.push_back(request);
      last_placement_ = submission.placement;
      react = react_;
    }
    changed_.notify_all();
    if (react) react(request);
  }
  void abort(std::vector<RequestId> ids) override {
    const std::lock_guard lock(mutex_);
    aborted_.insert(aborted_.end(), ids.begin(), ids.end());
    changed_.notify_all();
  }
  /// Every byte of a text is a token; a conversation renders as its JSON.
  void render(RenderRequest request, std::function<void(RenderReply)> reply) override {
    if (fail_renders_) throw std::runtime_error("by the test");
    if (hold_renders_) {
      const std::lock_guard lock(mutex_);
      held_renders_.push_back(request);
      changed_.notify_all();
      return;
    }
    RenderReply answer;
    if (const auto* text = std::get_if<TextPrompt>(&request.prompt)) {
      answer.text = text->text;
    } else if (const auto* chat = std::get_if<ChatPrompt>(&request.prompt)) {
      answer.text = chat->messages_json;
    } else {
      const auto& tokens = std::get<TokensPrompt>(request.prompt).token_ids;
      answer.text.assign(tokens.begin(), tokens.end());
    }
    for (const char c : answer.text) {
      answer.token_ids.push_back(static_cast<unsigned char>(c));
      answer.token_strings.emplace_back(1, c);
    }
    if (!rendered_.empty()) answer.text = rendered_;
    reply(std::move(answer));
  }
  void reset_caches(ResetCaches what, std::function<void(Result<CachesReset>)> reply) override {
    reset_ = what;
    reply(CachesReset{what.preempt_running});
  }
  void move_cache(MoveCache what, std::function<void(Result<CacheMoved>)> reply) override {
    moves_.push_back(std::move(what));
    reply(CacheMoved{.num_blocks = 5});
  }
  [[nodiscard]] const std::vector<MoveCache>& moves() const noexcept { return moves_; }
  void pause(PauseScheduler what, PauseReply reply) override {
    pauses_.push_back(what);
    paused_ = true;
    reply(PauseStatus{what.mode != PauseMode::kWait});
  }
  void resume(PauseReply reply) override {
    paused_ = false;
    reply(PauseStatus{});
  }
  void ask_paused(PauseReply reply) override { reply(PauseStatus{paused_}); }
  void drain_group(DrainGroup what, std::function<void(Result<Status>)> reply) override {
    drains_.push_back(what);
    reply(what.group < 2 ? Status{} : Status{invalid_argument("the groups are 0 to 1", "group")});
  }
  void ask_topology(std::function<void(Result<TopologyStatus>)> reply) override {
    reply(TopologyStatus{.groups = {{GroupState::kServing, 3}, {GroupState::kAbsent, 1}},
                         .nodes = {{.name = "core", .host = "h", .groups = {0}, .joined = true}}});
  }
  [[nodiscard]] const Placement& last_placement() const noexcept { return last_placement_; }
  [[nodiscard]] const std::vector<DrainGroup>& drains() const noexcept { return drains_; }
  [[nodiscard]] const std::vector<PauseScheduler>& pauses() const noexcept { return pauses_; }
  void load_adapter(LoadAdapter, AdapterCallback reply) override { reply(AdapterReply{}); }
  void unload_adapter(UnloadAdapter, AdapterCallback reply) override { reply(AdapterReply{}); }
  void call_workers(CollectiveRpc what,
                    std::function<void(Result<CollectiveRpcReply>)> reply) override {
    calls_.push_back(std::move(what));
    reply(CollectiveRpcReply{
        .results = {AdapterList{{{.name = "a", .int_id = 7, .path = "/a"}}}, WorkerResult{}}});
  }
  [[nodiscard]] const std::vector<CollectiveRpc>& calls() const noexcept { return calls_; }
  [[nodiscard]] std::shared_ptr<const AdapterList> adapters() const override { return nullptr; }
  [[nodiscard]] bool healthy() const noexcept override { return healthy_; }
  [[nodiscard]] const ResetCaches& last_reset() const noexcept { return reset_; }

  void set_healthy(bool healthy) { healthy_ = healthy; }
  void fail_renders(bool fail) { fail_renders_ = fail; }
  /// Everything, from now on.
  void render_as(std::string text) { rendered_ = std::move(text); }
  /// Called for every submission, on the thread that submits.
  void react(std::function<void(const GenerateRequest&)> function) {
    const std::lock_guard lock(mutex_);
    react_ = std::move(function);
  }

  /// The first `count` submitted requests, as soon as there are so many. Fewer after ten seconds.
  std::vector<GenerateRequest> wait_submitted(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return submitted_.size() >= count; });
    return submitted_;
  }
  /// From now on nothing is rendered.
  void hold_renders() { hold_renders_ = true; }
  std::vector<RenderRequest> wait_renders(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return held_renders_.size() >= count; });
    return held_renders_;
  }
  std::vector<RequestId> wait_aborted(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return aborted_.size() >= count; });
    return aborted_;
  }

 private:
  static constexpr std::chrono::seconds kPatience{120};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_id_ = 1;
  std::vector<GenerateRequest> submitted_;
  std::vector<RequestId> aborted_;
  std::atomic<bool> hold_renders_{false};
  std::vector<RenderRequest> held_renders_;
  ResetCaches reset_;
  std::vector<MoveCache> moves_;
  std::vector<CollectiveRpc> calls_;
  std::vector<PauseScheduler> pauses_;
  std::vector<DrainGroup> drains_;
  Placement last_placement_;
  std::atomic<std::uint64_t> num_keys_{0};
  bool paused_ = false;
  std::function<void(const GenerateRequest&)> react_;
  std::atomic<bool> healthy_{true};
  std::atomic<bool> fail_renders_{false};
  std::string rendered_;
};

/// One output with one sample.
inline RequestOutput text_output(RequestId id, std::string text, std::vector<TokenId> token_ids,
                                 std::optional<FinishReason> finish = std::nullopt,
                                 std::int32_t index = 0) {
  RequestOutput output;
  output.id = id;
  CompletionOutput completion;
  completion.index = index;
  completion.text = std::move(text);
  completion.token_ids = std::move(token_ids);
  completion.finish_reason = finish;
  output.outputs.push_back(std::move(completion));
  output.finished = finish.has_value();
  return output;
}

inline RequestOutputs step(RequestOutput output) {
  RequestOutputs outputs;
  outputs.outputs.push_back(std::move(output));
  return outputs;
}

}  // namespace troupe
