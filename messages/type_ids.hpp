#pragma once
// Every type that travels between actors, in CAF's type-id blocks, and the `inspect` that
// serialises them: CAF sees a message as one byte string in our wire format, because its own format
// distorts floats and copies arrays element by element.

#include <caf/all.hpp>
#include <vector>

#include "messages/cache.hpp"
#include "messages/caf_compat.hpp"
#include "messages/control.hpp"
#include "messages/encoder_cache.hpp"
#include "messages/engine_output.hpp"
#include "messages/error.hpp"
#include "messages/kv_events.hpp"
#include "messages/model_runner_output.hpp"
#include "messages/node.hpp"
#include "messages/request.hpp"
#include "messages/scheduler_output.hpp"
#include "messages/wire.hpp"
#include "messages/worker.hpp"

namespace troupe {

/// Actor handles sent with a message, which states their order: plain structs cannot hold them.
using ActorHandles = std::vector<caf::strong_actor_ptr>;

inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30;

#if TROUPE_CAF_TYPE_IDS

template <class Inspector, Reflected T>
bool inspect(Inspector& f, T& message) {
  std::vector<std::byte> bytes;
  if constexpr (Inspector::is_loading) {
    if (!f.apply(bytes)) return false;
    return wire::decode(reinterpret_cast<const char*>(bytes.data()), bytes.size(), message);
  } else {
    std::vector<char> encoded;
    wire::encode(message, encoded);
    const auto* data = reinterpret_cast<const std::byte*>(encoded.data());
    bytes.assign(data, data + encoded.size());
    return f.apply(bytes);
  }
}

#else

template <class Inspector, Reflected T>
typename Inspector::result_type inspect(Inspector& f, T& message) {
  if constexpr (requires { f.apply_raw(std::size_t{}, static_cast<void*>(nullptr)); }) {
    static thread_local std::vector<char> bytes;
    if constexpr (Inspector::reads_state) {
      wire::encode(message, bytes);
      if (bytes.size() > kMaxMessageBytes) return caf::sec::invalid_argument;
      auto size = static_cast<std::uint32_t>(bytes.size());
      if (auto error = f(size)) return error;
      return size == 0 ? caf::error{} : f.apply_raw(size, bytes.data());
    } else {
      std::uint32_t size = 0;
      if (auto error = f(size)) return error;
      if (size > kMaxMessageBytes) return caf::sec::invalid_argument;
      bytes.resize(size);
      if (size != 0) {
        if (auto error = f.apply_raw(size, bytes.data())) return error;
      }
      if (!wire::decode(bytes.data(), bytes.size(), message)) return caf::sec::invalid_argument;
      return caf::error{};
    }
  } else {
    std::size_t size = sizeof(T);  // for CAF's diagnostic printer
    return f(size);
  }
}

#endif

}  // namespace troupe

CAF_BEGIN_TYPE_ID_BLOCK(troupe, caf::first_custom_type_id)
CAF_ADD_TYPE_ID(troupe, (troupe::Error))
CAF_ADD_TYPE_ID(troupe, (troupe::GenerateRequest))
CAF_ADD_TYPE_ID(troupe, (troupe::EngineCoreRequests))
CAF_ADD_TYPE_ID(troupe, (troupe::OutputRequest))
CAF_ADD_TYPE_ID(troupe, (troupe::AbortRequests))
CAF_ADD_TYPE_ID(troupe, (troupe::RenderRequest))
CAF_ADD_TYPE_ID(troupe, (troupe::RenderReply))
CAF_ADD_TYPE_ID(troupe, (troupe::KVCacheUpdates))
CAF_ADD_TYPE_ID(troupe, (troupe::AllocateSlots))
CAF_ADD_TYPE_ID(troupe, (troupe::SlotsAllocated))
CAF_ADD_TYPE_ID(troupe, (troupe::LookupPrefix))
CAF_ADD_TYPE_ID(troupe, (troupe::PrefixHit))
CAF_ADD_TYPE_ID(troupe, (troupe::AdmitRequest))
CAF_ADD_TYPE_ID(troupe, (troupe::RequestAdmitted))
CAF_ADD_TYPE_ID(troupe, (troupe::GetBlockOps))
CAF_ADD_TYPE_ID(troupe, (troupe::BlockOps))
CAF_ADD_TYPE_ID(troupe, (troupe::ReadBlockTable))
CAF_ADD_TYPE_ID(troupe, (troupe::BlockTableRead))
CAF_ADD_TYPE_ID(troupe, (troupe::FindInvalidBlocks))
CAF_ADD_TYPE_ID(troupe, (troupe::InvalidBlocksFound))
CAF_ADD_TYPE_ID(troupe, (troupe::ResetPrefixCache))
CAF_ADD_TYPE_ID(troupe, (troupe::PrefixCacheReset))
CAF_ADD_TYPE_ID(troupe, (troupe::KVEventBatch))
CAF_ADD_TYPE_ID(troupe, (troupe::ResetCaches))
CAF_ADD_TYPE_ID(troupe, (troupe::CachesReset))
CAF_ADD_TYPE_ID(troupe, (troupe::PauseScheduler))
CAF_ADD_TYPE_ID(troupe, (troupe::ResumeScheduler))
CAF_ADD_TYPE_ID(troupe, (troupe::AskPaused))
CAF_ADD_TYPE_ID(troupe, (troupe::PauseStatus))
CAF_ADD_TYPE_ID(troupe, (troupe::EncoderCacheUpdates))
CAF_ADD_TYPE_ID(troupe, (troupe::PlanEncoderInputs))
CAF_ADD_TYPE_ID(troupe, (troupe::EncoderInputsPlanned))
CAF_ADD_TYPE_ID(troupe, (troupe::TakeFreedEncoderOutputs))
CAF_ADD_TYPE_ID(troupe, (troupe::FreedEncoderOutputs))
CAF_ADD_TYPE_ID(troupe, (troupe::SchedulerOutput))
CAF_ADD_TYPE_ID(troupe, (troupe::GrammarOutput))
CAF_ADD_TYPE_ID(troupe, (troupe::ModelRunnerOutput))
CAF_ADD_TYPE_ID(troupe, (troupe::EngineCoreOutputs))
CAF_ADD_TYPE_ID(troupe, (troupe::RequestOutputs))
CAF_ADD_TYPE_ID(troupe, (troupe::CollectiveRpc))
CAF_ADD_TYPE_ID(troupe, (troupe::CollectiveRpcReply))
CAF_ADD_TYPE_ID(troupe, (troupe::WorkerRpc))
CAF_ADD_TYPE_ID(troupe, (troupe::WorkerRpcReply))
CAF_ADD_TYPE_ID(troupe, (troupe::LoadProgress))
CAF_ADD_TYPE_ID(troupe, (troupe::Status))
CAF_ADD_TYPE_ID(troupe, (troupe::StepFailed))
CAF_ADD_TYPE_ID(troupe, (troupe::JoinGroup))
CAF_ADD_TYPE_ID(troupe, (troupe::OpenRings))
CAF_ADD_TYPE_ID(troupe, (troupe::Subscribe))
CAF_ADD_TYPE_ID(troupe, (troupe::Listen))
CAF_ADD_TYPE_ID(troupe, (troupe::Listening))
CAF_ADD_TYPE_ID(troupe, (troupe::Drain))
CAF_ADD_TYPE_ID(troupe, (troupe::Drained))
CAF_ADD_TYPE_ID(troupe, (troupe::EngineLost))
CAF_ADD_TYPE_ID(troupe, (troupe::SubmitRequest))
CAF_ADD_TYPE_ID(troupe, (troupe::EngineReady))
CAF_ADD_TYPE_ID(troupe, (troupe::EngineRefused))
CAF_ADD_TYPE_ID(troupe, (troupe::DrainGroup))
CAF_ADD_TYPE_ID(troupe, (troupe::EndGroup))
CAF_ADD_TYPE_ID(troupe, (troupe::AskTopology))
CAF_ADD_TYPE_ID(troupe, (troupe::TopologyStatus))
CAF_ADD_TYPE_ID(troupe, (troupe::EngineHealth))
CAF_ADD_TYPE_ID(troupe, (troupe::ConnectFrontend))
CAF_ADD_TYPE_ID(troupe, (troupe::FrontendConnected))
CAF_ADD_TYPE_ID(troupe, (troupe::RouterReport))
CAF_ADD_TYPE_ID(troupe, (troupe::RouterReady))
CAF_ADD_TYPE_ID(troupe, (troupe::JoinNode))
CAF_ADD_TYPE_ID(troupe, (troupe::GroupRecord))
CAF_ADD_TYPE_ID(troupe, (troupe::NodeAccepted))
CAF_ADD_TYPE_ID(troupe, (troupe::NodeConnected))
CAF_ADD_TYPE_ID(troupe, (troupe::PrepareNode))
CAF_ADD_TYPE_ID(troupe, (troupe::SpawnWorker))
CAF_ADD_TYPE_ID(troupe, (troupe::SpawnRole))
CAF_ADD_TYPE_ID(troupe, (troupe::Heartbeat))
CAF_ADD_TYPE_ID(troupe, (troupe::HeartbeatReply))
CAF_ADD_TYPE_ID(troupe, (troupe::LeaveNode))
CAF_ADD_TYPE_ID(troupe, (troupe::LoadAdapter))
CAF_ADD_TYPE_ID(troupe, (troupe::UnloadAdapter))
CAF_ADD_TYPE_ID(troupe, (troupe::ListAdapters))
CAF_ADD_TYPE_ID(troupe, (troupe::AdapterReply))
CAF_END_TYPE_ID_BLOCK(troupe)

// Messages that an actor sends to itself, or within its process: rejected from other nodes.
CAF_BEGIN_TYPE_ID_BLOCK(troupe_local, caf::id_block::troupe::end)
CAF_ADD_TYPE_ID(troupe_local, (troupe::Start))
CAF_ADD_TYPE_ID(troupe_local, (troupe::Started))
CAF_ADD_TYPE_ID(troupe_local, (troupe::Stop))
CAF_ADD_TYPE_ID(troupe_local, (troupe::Stopped))
CAF_ADD_TYPE_ID(troupe_local, (troupe::DrainProgress))
CAF_ADD_TYPE_ID(troupe_local, (troupe::LogStats))
CAF_ADD_TYPE_ID(troupe_local, (troupe::GroupDrainTimeout))
CAF_ADD_TYPE_ID(troupe_local, (troupe::WakeUp))
CAF_ADD_TYPE_ID(troupe_local, (troupe::GrammarCompiled))
CAF_ADD_TYPE_ID(troupe_local, (troupe::GrammarFilled))
CAF_ADD_TYPE_ID(troupe_local, (troupe::NodeExited))
CAF_ADD_TYPE_ID(troupe_local, (troupe::CheckNodes))
CAF_ADD_TYPE_ID(troupe_local, (troupe::ConfirmLoss))
CAF_ADD_TYPE_ID(troupe_local, (troupe::PrepareInput))
CAF_ADD_TYPE_ID(troupe_local, (troupe::RpcDeadline))
CAF_END_TYPE_ID_BLOCK(troupe_local)
