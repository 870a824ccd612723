#include "actors/input_worker.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/guard.hpp"
#include "runtime/base/memory.hpp"
#include "runtime/multimodal/processor_cache.hpp"

namespace troupe {
namespace {

bool leaves_out_data(const std::vector<EngineCoreRequest>& samples) {
  if (samples.empty()) return false;
  const auto& items = samples.front().mm_features;
  return std::any_of(items.begin(), items.end(),
                     [](const MultiModalFeature& item) { return item.data == nullptr; });
}

/// Memory used by template and tokenizer for a prompt has been freed.
void note_processed(std::size_t num_prompt_bytes) {
  constexpr std::size_t kFactor = 8;
  note_freed_memory(kFactor * num_prompt_bytes);
}

bool is_chat(const Prompt& prompt) { return std::holds_alternative<ChatPrompt>(prompt); }

void prepare(const InputProcessor& core, InputSlot& slot) {
  const InputContext context{
      .clock = ChatClock::now(),
      .limits = core.limits_of_work(slot.cancelled, std::chrono::steady_clock::now()),
      .with_item_data = slot.with_item_data,
      .remote = &slot.remote};
  const bool may_fetch =
      core.media_loader() != nullptr && core.media_loader()->fetches() && !slot.remote.files;
  std::size_t num_prompt_bytes = 0;
  if (auto* const generate = std::get_if<GenerateRequest>(&slot.request)) {
    num_prompt_bytes = text_bytes(generate->prompt);
    auto thrown = guard([&] {
      const ProcessorCache* const cache = core.processor_cache();
      const bool leaves_out = cache != nullptr && cache->leaves_out_data();
      if ((may_fetch || leaves_out) && is_chat(generate->prompt)) slot.again = *generate;
      slot.processed = core.process(std::move(*generate), context);
    });
    if (thrown) slot.processed = *std::move(thrown);
    if (slot.remote.wanted.empty() &&
        (!slot.processed->ok() || !leaves_out_data((*slot.processed)->samples)))
      slot.again = {};
  } else {
    const auto& render = std::get<RenderRequest>(slot.request);
    num_prompt_bytes = text_bytes(render.prompt);
    auto thrown = guard([&] {
      slot.rendered = core.render(render, context);
      if (!slot.remote.wanted.empty()) slot.again = render;
    });
    if (thrown) slot.rendered = {.error = std::move(thrown)};
  }
  slot.request = {};
  note_processed(num_prompt_bytes);
}

InputWorkerActor::behavior_type input_worker_behavior(
    const std::shared_ptr<const InputProcessor>& core, const std::shared_ptr<InputSlot>& slot) {
  return {[=](const PrepareInput&) {
    prepare(*core, *slot);
    return Status{};
  }};
}

InputWorkerActor::behavior_type fetch_behavior(const std::shared_ptr<const InputProcessor>& core,
                                               const std::shared_ptr<FetchSlot>& slot) {
  return {[=](const PrepareInput&) {
    const std::vector<std::string_view> urls(slot->urls.begin(), slot->urls.end());
    slot->files = core->media_loader()->fetch_all(urls, slot->limits);
    return Status{};
  }};
}

}  // namespace

InputWorkerActor spawn_input_worker(caf::actor_system& system,
                                    std::shared_ptr<const InputProcessor> core,
                                    std::shared_ptr<InputSlot> slot) {
  return system.spawn<caf::detached>(input_worker_behavior, std::move(core), std::move(slot));
}

InputWorkerActor spawn_fetcher(caf::actor_system& system,
                               std::shared_ptr<const InputProcessor> core,
                               std::shared_ptr<FetchSlot> slot) {
  return system.spawn<caf::detached>(fetch_behavior, std::move(core), std::move(slot));
}

}  // namespace troupe
