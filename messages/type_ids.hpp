#pragma once
// Every type that travels between actors, in CAF's type-id blocks, and the `inspect` that
// serialises them: CAF sees a message as one byte string in our wire format, because its own format
// distorts floats and copies arrays element by element.

#include <caf/all.hpp>
#include <vector>

#include "messages/cache.hpp"
#include "messages/caf_compat.hpp"
#include "messages/control.hpp"
#include "messages/encoder.hpp"
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

// The list of messages, in parts that compile in about equal time. The order is the order of the
// type IDs. A new message is one line.
#define TROUPE_REQUEST_MESSAGES(X) \
  X(troupe::Error)                 \
  X(troupe::GenerateRequest)       \
  X(troupe::EngineCoreRequests)    \
  X(troupe::CachedItemRequests)    \
  X(troupe::ItemsMissing)          \
  X(troupe::OutputRequest)         \
  X(troupe::AbortRequests)         \
  X(troupe::RenderRequest)         \
  X(troupe::RenderReply)

#define TROUPE_KV_CACHE_MESSAGES(X) \
  X(troupe::KVCacheUpdates)         \
  X(troupe::AllocateSlots)          \
  X(troupe::SlotsAllocated)         \
  X(troupe::LookupPrefix)           \
  X(troupe::PrefixHit)              \
  X(troupe::AdmitRequest)           \
  X(troupe::RequestAdmitted)        \
  X(troupe::GetBlockOps)            \
  X(troupe::BlockOps)               \
  X(troupe::ReadBlockTable)         \
  X(troupe::BlockTableRead)         \
  X(troupe::FindInvalidBlocks)      \
  X(troupe::InvalidBlocksFound)     \
  X(troupe::ResetPrefixCache)       \
  X(troupe::PrefixCacheReset)       \
  X(troupe::KVEventBatch)

#define TROUPE_CACHE_MESSAGES(X)     \
  X(troupe::ResetCaches)             \
  X(troupe::CachesReset)             \
  X(troupe::MoveCache)               \
  X(troupe::CacheMoved)              \
  X(troupe::PauseScheduler)          \
  X(troupe::ResumeScheduler)         \
  X(troupe::AskPaused)               \
  X(troupe::PauseStatus)             \
  X(troupe::EncoderCacheUpdates)     \
  X(troupe::PlanEncoderInputs)       \
  X(troupe::EncoderInputsPlanned)    \
  X(troupe::TakeFreedEncoderOutputs) \
  X(troupe::FreedEncoderOutputs)

#define TROUPE_STEP_MESSAGES(X) \
  X(troupe::SchedulerOutput)    \
  X(troupe::GrammarOutput)      \
  X(troupe::ModelRunnerOutput)  \
  X(troupe::EngineCoreOutputs)  \
  X(troupe::RequestOutputs)     \
  X(troupe::CollectiveRpc)      \
  X(troupe::CollectiveRpcReply) \
  X(troupe::WorkerRpc)          \
  X(troupe::WorkerRpcReply)     \
  X(troupe::LoadProgress)       \
  X(troupe::Status)             \
  X(troupe::StepFailed)

#define TROUPE_TOPOLOGY_MESSAGES(X) \
  X(troupe::JoinGroup)              \
  X(troupe::OpenRings)              \
  X(troupe::Subscribe)              \
  X(troupe::Listen)                 \
  X(troupe::Listening)              \
  X(troupe::Drain)                  \
  X(troupe::Drained)                \
  X(troupe::EngineLost)             \
  X(troupe::SubmitRequest)          \
  X(troupe::EngineReady)            \
  X(troupe::EngineRefused)          \
  X(troupe::DrainGroup)             \
  X(troupe::EndGroup)               \
  X(troupe::AskTopology)            \
  X(troupe::TopologyStatus)         \
  X(troupe::EngineHealth)           \
  X(troupe::ConnectFrontend)        \
  X(troupe::FrontendConnected)      \
  X(troupe::RouterReport)           \
  X(troupe::RouterReady)

#define TROUPE_NODE_MESSAGES(X) \
  X(troupe::JoinNode)           \
  X(troupe::GroupRecord)        \
  X(troupe::NodeAccepted)       \
  X(troupe::NodeConnected)      \
  X(troupe::PrepareNode)        \
  X(troupe::SpawnWorker)        \
  X(troupe::SpawnRole)          \
  X(troupe::Heartbeat)          \
  X(troupe::HeartbeatReply)     \
  X(troupe::LeaveNode)          \
  X(troupe::EncodersChanged)    \
  X(troupe::EncodeItem)         \
  X(troupe::ItemEncoded)        \
  X(troupe::FindEncoderOutput)  \
  X(troupe::EncoderOutputFound) \
  X(troupe::LoadAdapter)        \
  X(troupe::UnloadAdapter)      \
  X(troupe::ListAdapters)       \
  X(troupe::AdapterReply)

// Messages that an actor sends to itself, or within its process: rejected from other nodes.
#define TROUPE_LOCAL_MESSAGES(X) \
  X(troupe::Start)               \
  X(troupe::Started)             \
  X(troupe::Stop)                \
  X(troupe::Stopped)             \
  X(troupe::DrainProgress)       \
  X(troupe::LogStats)            \
  X(troupe::GroupDrainTimeout)   \
  X(troupe::WakeUp)              \
  X(troupe::GrammarCompiled)     \
  X(troupe::GrammarFilled)       \
  X(troupe::NodeExited)          \
  X(troupe::CheckNodes)          \
  X(troupe::ConfirmLoss)         \
  X(troupe::PrepareInput)        \
  X(troupe::RpcDeadline)         \
  X(troupe::EncodeItems)         \
  X(troupe::LoadEncoder)

CAF_BEGIN_TYPE_ID_BLOCK(troupe, caf::first_custom_type_id)
#define TROUPE_ADD_TYPE_ID(type) CAF_ADD_TYPE_ID(troupe, (type))
TROUPE_REQUEST_MESSAGES(TROUPE_ADD_TYPE_ID)
TROUPE_KV_CACHE_MESSAGES(TROUPE_ADD_TYPE_ID)
TROUPE_CACHE_MESSAGES(TROUPE_ADD_TYPE_ID)
TROUPE_STEP_MESSAGES(TROUPE_ADD_TYPE_ID)
TROUPE_TOPOLOGY_MESSAGES(TROUPE_ADD_TYPE_ID)
TROUPE_NODE_MESSAGES(TROUPE_ADD_TYPE_ID)
#undef TROUPE_ADD_TYPE_ID
CAF_END_TYPE_ID_BLOCK(troupe)

CAF_BEGIN_TYPE_ID_BLOCK(troupe_local, caf::id_block::troupe::end)
#define TROUPE_ADD_TYPE_ID(type) CAF_ADD_TYPE_ID(troupe_local, (type))
TROUPE_LOCAL_MESSAGES(TROUPE_ADD_TYPE_ID)
#undef TROUPE_ADD_TYPE_ID
CAF_END_TYPE_ID_BLOCK(troupe_local)

// The templates that CAF and the wire format make of a message are compiled once, in
// actors/messages_*.cpp: in each file with an actor they would take a third of its compile time.
#if TROUPE_CAF_TYPE_IDS
#define TROUPE_MESSAGE_TEMPLATES(prefix, type)                                      \
  prefix template void troupe::wire::encode<type>(const type&, std::vector<char>&); \
  prefix template bool troupe::wire::decode<type>(const char*, std::size_t, type&);
#else
#define TROUPE_MESSAGE_TEMPLATES(prefix, type)                                         \
  prefix template void troupe::wire::encode<type>(const type&, std::vector<char>&);    \
  prefix template bool troupe::wire::decode<type>(const char*, std::size_t, type&);    \
  prefix template class caf::detail::type_erased_value_impl<type>;                     \
  prefix template class caf::detail::tuple_vals_impl<caf::detail::message_data, type>; \
  prefix template class caf::detail::tuple_vals_impl<caf::type_erased_tuple, type>;    \
  prefix template class caf::detail::tuple_vals<type>;
#endif
#define TROUPE_DECLARE_MESSAGE_TEMPLATES(type) TROUPE_MESSAGE_TEMPLATES(extern, type)
#define TROUPE_DEFINE_MESSAGE_TEMPLATES(type) TROUPE_MESSAGE_TEMPLATES(, type)
TROUPE_REQUEST_MESSAGES(TROUPE_DECLARE_MESSAGE_TEMPLATES)
TROUPE_KV_CACHE_MESSAGES(TROUPE_DECLARE_MESSAGE_TEMPLATES)
TROUPE_CACHE_MESSAGES(TROUPE_DECLARE_MESSAGE_TEMPLATES)
TROUPE_STEP_MESSAGES(TROUPE_DECLARE_MESSAGE_TEMPLATES)
TROUPE_TOPOLOGY_MESSAGES(TROUPE_DECLARE_MESSAGE_TEMPLATES)
TROUPE_NODE_MESSAGES(TROUPE_DECLARE_MESSAGE_TEMPLATES)
TROUPE_LOCAL_MESSAGES(TROUPE_DECLARE_MESSAGE_TEMPLATES)
