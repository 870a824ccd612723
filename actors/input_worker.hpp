#pragma once
// The actors that prepare requests for an InputProcessor: workers, which render, tokenize and
// preprocess, and fetchers, which load the files of a request. Detached: both block.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "messages/actor_interfaces.hpp"
#include "runtime/base/work_budget.hpp"
#include "runtime/multimodal/image_inputs.hpp"
#include "runtime/multimodal/media_loader.hpp"
#include "runtime/processors/input_processor.hpp"

namespace troupe {

using InputRequest = std::variant<std::monostate, GenerateRequest, RenderRequest>;

/// The input and output of a worker. Owned by the InputProcessor while the worker is idle, and by
/// the worker from PrepareInput to its reply: the messages synchronise access.
struct InputSlot {
  InputRequest request;
  RemoteMedia remote;  ///< with the files, if they have been fetched
  bool with_item_data = false;
  std::shared_ptr<const std::atomic<bool>> cancelled;
  std::optional<Result<ProcessedRequest>> processed;  ///< of a GenerateRequest
  /// Of one that may have to be prepared again: its files are to be fetched first, or its items
  /// have no data, which is left to the engine's cache.
  InputRequest again;
  RenderReply rendered;  ///< of a RenderRequest
};

/// The files of one request. Owned by the fetcher from PrepareInput to its reply.
struct FetchSlot {
  std::vector<std::string> urls;
  WorkLimits limits;
  MediaLoader::FetchedFiles files;
};

/// PrepareInput processes or renders the request of the slot. Errors are the slot's.
[[nodiscard]] InputWorkerActor spawn_input_worker(caf::actor_system& system,
                                                  std::shared_ptr<const InputProcessor> core,
                                                  std::shared_ptr<InputSlot> slot);

/// PrepareInput fetches the files of the slot; one actor serves one request.
[[nodiscard]] InputWorkerActor spawn_fetcher(caf::actor_system& system,
                                             std::shared_ptr<const InputProcessor> core,
                                             std::shared_ptr<FetchSlot> slot);

}  // namespace troupe
