#pragma once
// Every actor's interface, one sentence per message. The README draws the path of a request.

#include "messages/type_ids.hpp"

// clang-format off
namespace troupe {

/// One per device: holds the weights and the KV cache, runs the model. Or a proxy for the workers
/// of a host behind their rings: then every rank answers the sender.
using WorkerActor = ActorOf<
    void(WorkerRpc),                   // Run a method; WorkerRpcReply goes to the sender, LoadProgress before it.
    void(JoinGroup),                   // Join the communication group of the ranks.
    void(SchedulerOutput),             // Run a step; ModelRunnerOutput or StepFailed goes to the sender.
    void(GrammarOutput)>;              // Sample a structured step; ModelRunnerOutput or StepFailed goes to the sender.

/// The recipient of a Worker's results: its Executor, or the proxy at the end of the rings.
using StepSinkActor = ActorOf<
    void(WorkerRpcReply),              // What a method has returned.
    void(LoadProgress),                // A worker is still loading.
    void(ModelRunnerOutput),           // A worker's result.
    void(StepFailed)>;                 // A worker's failure.

/// The group of workers of one engine.
using ExecutorActor = ActorOf<
    CollectiveRpcReply(CollectiveRpc),  // Run a method on every worker; LoadProgress goes to the sender meanwhile.
    void(WorkerRpcReply),              // What a method has returned on a worker.
    void(LoadProgress),                // A worker is still loading.
    void(RpcDeadline),                 // To itself: fail the call unless all workers have replied.
    void(SchedulerOutput),             // Run a step on every worker; the result goes to the sender.
    void(GrammarOutput),               // What every worker needs to sample a structured step.
    void(ModelRunnerOutput),           // A worker's result.
    void(StepFailed)>;                 // A worker's failure.

/// Runs the engine's loop: schedule, execute, update.
using SchedulerActor = ActorOf<
    void(EngineCoreRequests),          // Queue the samples of a request.
    ItemsMissing(CachedItemRequests),  // Queue them, if the processor cache has the data of their items.
    void(AbortRequests),               // Abort these requests, whatever their state.
    CachesReset(ResetCaches),          // Clear the caches between two steps.
    CacheMoved(MoveCache),             // Copy what the KV connector has stored, or take such copies in.
    PauseStatus(PauseScheduler),       // Pause; the reply is sent when nothing runs.
    PauseStatus(ResumeScheduler),      // Resume scheduling.
    PauseStatus(AskPaused),            // Whether it is paused or pausing.
    AdapterReply(LoadAdapter),         // This and the next two go to all workers.
    AdapterReply(UnloadAdapter),
    AdapterReply(ListAdapters),
    CollectiveRpcReply(CollectiveRpc),  // Run a method on every worker.
    void(ModelRunnerOutput),           // The result of the step in flight.
    void(StepFailed),                  // The step in flight failed.
    void(GrammarCompiled),             // To itself: the grammar of a structured request is compiled.
    void(GrammarFilled),               // To itself: the masks of a step are filled.
    void(WakeUp)>;                     // To itself: run the loop without a new message.

/// Owns the block tables of the requests, the block pool and the prefix cache.
using KVCacheManagerActor = ActorOf<
    void(KVCacheUpdates),              // State changes of requests.
    SlotsAllocated(AllocateSlots),     // Allocate blocks for running requests, in order, until one does not fit.
    PrefixHit(LookupPrefix),           // Find the cached prefix of a waiting request.
    RequestAdmitted(AdmitRequest),     // Admit a waiting request.
    BlockOps(GetBlockOps),             // Copies and zeroing of blocks before the step runs.
    BlockTableRead(ReadBlockTable),    // The block table of a finished request.
    InvalidBlocksFound(FindInvalidBlocks),  // Valid prefix of these requests without the given blocks.
    PrefixCacheReset(ResetPrefixCache),  // Clear the prefix cache.
    void(KVEventBatch)>;               // Events of the Scheduler's KV connector, for the publisher.

/// Publishes KV cache events.
using KVEventPublisherActor = ActorOf<
    void(KVEventBatch)>;               // The events of one step.

/// Owns the cache of multimodal encoder outputs and the references to them.
using EncoderCacheManagerActor = ActorOf<
    void(EncoderCacheUpdates),         // State changes of requests.
    EncoderInputsPlanned(PlanEncoderInputs),        // Find the items that a range of a prompt needs encoded.
    FreedEncoderOutputs(TakeFreedEncoderOutputs)>;  // Evicted outputs that the workers can free.

/// Runs the model's vision encoder in a process of its own, and stores its outputs where the
/// workers can load them.
using EncoderActor = ActorOf<
    ItemEncoded(EncodeItem),           // Encode an item, unless its output is there.
    EncoderOutputFound(FindEncoderOutput)>;  // The output of an item, if it exists.

/// The worker of an Encoder, which runs the encoder model.
using EncoderWorkerActor = ActorOf<
    Status(LoadEncoder),               // Load the model's encoder.
    ItemEncoded(EncodeItem)>;          // Encode an item and save its output.

/// One in each process that uses encoders: chooses the encoder of each item.
using EncoderRouterActor = ActorOf<
    void(EncodersChanged, ActorHandles),     // The current encoders, with their handles.
    Status(EncodeItems),               // Have these items encoded.
    EncoderOutputFound(FindEncoderOutput)>;  // Ask the encoders for an output.

/// Detokenizes; merges the samples of a request.
using OutputProcessorActor = ActorOf<
    Status(Subscribe),                 // Send the RequestOutputs of every step to the sender.
    Status(OutputRequest),             // Register a request; answered before the Scheduler receives it.
    void(EngineCoreOutputs),           // Output of a step; requests that end by a stop string are reported to the sender.
    void(AbortRequests)>;              // The client has disconnected: finish these without it.

/// Validates and tokenizes requests, on several worker threads.
using InputProcessorActor = ActorOf<
    void(SubmitRequest),               // Prepare and start a request; an error goes to the sender as RequestOutputs.
    void(AbortRequests),               // The client has disconnected: abort these here and in all later actors.
    RenderReply(RenderRequest),        // Render or tokenize a prompt without running it.
    CachesReset(ResetCaches)>;         // Clear the cache of processed images.

/// One of the worker threads of an InputProcessor.
using InputWorkerActor = ActorOf<
    Status(PrepareInput)>;             // Prepare the request in the shared slot.

}  // namespace troupe

// Handles that travel in messages.
CAF_BEGIN_TYPE_ID_BLOCK(troupe_handles, caf::id_block::troupe_local::end)
CAF_ADD_TYPE_ID(troupe_handles, (troupe::SchedulerActor))
CAF_ADD_TYPE_ID(troupe_handles, (troupe::OutputProcessorActor))
CAF_ADD_TYPE_ID(troupe_handles, (troupe::InputProcessorActor))
CAF_ADD_TYPE_ID(troupe_handles, (std::vector<troupe::InputProcessorActor>))
CAF_END_TYPE_ID_BLOCK(troupe_handles)

namespace troupe {

/// A client of the RequestRouter: any actor that submits requests.
using RequestClientActor = ActorOf<
    void(RequestOutputs)>;             // What a step produced of the client's requests, as text.

/// The engine's entry point: journals requests until they finish and distributes them over the
/// engine groups.
using RequestRouterActor = ActorOf<
    FrontendConnected(ConnectFrontend),  // An HTTP server connects.
    void(SubmitRequest),               // A client's request; its output goes to the sender.
    void(AbortRequests),               // Abort requests of the sender.
    RenderReply(RenderRequest),        // Render or tokenize a prompt; forwarded to an InputProcessor.
    CachesReset(ResetCaches),          // Forwarded to the Scheduler and the InputProcessors of each group.
    CacheMoved(MoveCache),             // Forwarded to the Scheduler of each group.
    PauseStatus(PauseScheduler),       // Forwarded to each Scheduler, including those that start later.
    PauseStatus(ResumeScheduler),      // Forwarded to each Scheduler.
    PauseStatus(AskPaused),            // Whether it is paused or pausing.
    AdapterReply(LoadAdapter),         // Load an adapter in each group; requests may name it then.
    AdapterReply(UnloadAdapter),       // New requests cannot name it any more.
    CollectiveRpcReply(CollectiveRpc),  // Run a method on every worker of each group; the results in their order.
    void(RequestOutputs),              // What a step produced, as text.
    void(EngineLost),                  // The engine of a group has ended: its requests are resubmitted.
    void(EngineReady, std::vector<InputProcessorActor>, OutputProcessorActor, SchedulerActor),
                                       // The engine of a group is ready for requests.
    Status(DrainGroup),                // Send it no more requests, wait for running ones, then end it.
    void(GroupDrainTimeout),           // To itself: resubmit what still runs in the group.
    TopologyStatus(AskTopology),       // Forwarded to the Supervisor.
    void(EngineHealth),                // Whether an engine is running or being started.
    Drained(Drain),                    // Reject new requests, wait for running ones.
    void(DrainProgress),               // To itself: the drain timeout has passed.
    void(WakeUp)>;                     // To itself: check the deadlines of waiting requests.

/// Watches a folder of adapters.
using AdapterDirectoryActor = ActorOf<
    void(WakeUp)>;                     // To itself: look again.

/// The HTTP server. Messages of its threads pass through it to the RequestRouter.
using FrontendActor = ActorOf<
    Listening(Listen),                 // Open the port.
    void(SubmitRequest),               // From the server's threads: a client's request.
    void(AbortRequests),               // From the server's threads: disconnected clients.
    RenderReply(RenderRequest),        // This and the next ten are forwarded.
    CachesReset(ResetCaches),
    CacheMoved(MoveCache),
    PauseStatus(PauseScheduler),
    PauseStatus(ResumeScheduler),
    PauseStatus(AskPaused),
    Status(DrainGroup),
    TopologyStatus(AskTopology),
    AdapterReply(LoadAdapter),
    AdapterReply(UnloadAdapter),
    CollectiveRpcReply(CollectiveRpc),
    void(RequestOutputs),              // What a step produced, as text.
    void(RouterReport),                // State changes of the groups.
    void(RouterReady, ActorHandles),   // A new RequestRouter: requests go there.
    Drained(Drain),                    // Reject new requests, wait for running ones.
    void(DrainProgress),               // To itself: idle, or the timeout has passed.
    void(WakeUp),                      // To itself: check the deadlines of waiting requests.
    void(LogStats)>;                   // To itself: log the periodic statistics.

/// A process in which actors are placed: starts actors on the Supervisor's behalf.
using NodeActor = ActorOf<
    Status(PrepareNode),               // Load what the node's roles need.
    Replies<Status, ActorHandles>(SpawnWorker),              // Start a Worker.
    Replies<Status, ActorHandles>(SpawnRole, ActorHandles),  // Start the actor of a role; with it, the handles of its peers.
    void(OpenRings),                   // From the Executor's node: connect a Worker's step rings.
    void(GroupRecord),                 // State of a serving group, kept for the next Supervisor.
    void(RouterReady, ActorHandles),   // For the node's Frontend: a new RequestRouter.
    void(EncodersChanged, ActorHandles),  // For the node's EncoderRouter: the current encoders.
    void(CheckNodes),                  // To itself: check that the Supervisor and the other nodes are alive.
    void(LeaveNode)>;                  // End every actor of the node.

/// Shows that the actors of a node are being scheduled.
using HeartActor = ActorOf<
    void(Heartbeat)>;                  // HeartbeatReply goes to the sender.

/// The root: spawns all actors in order, monitors them, restarts what fails, stops them in reverse
/// order.
using SupervisorActor = ActorOf<
    Started(Start),                    // Load the model and start the engine.
    Stopped(Stop),                     // Drain, then end every actor.
    void(LoadProgress),                // A worker is still loading.
    NodeAccepted(JoinNode, ActorHandles),  // A node joins; with it, its NodeActor and its HeartActor.
    void(NodeConnected),               // The sender, a node, is connected to its peers.
    void(HeartbeatReply),              // The heartbeat of the sender, a node's HeartActor.
    Status(EndGroup),                  // End a group whose requests are elsewhere.
    void(EngineRefused),               // The RequestRouter has taken back the requests of this engine.
    TopologyStatus(AskTopology),       // State of nodes and groups.
    void(NodeExited),                  // To itself: a child process has exited.
    void(CheckNodes),                  // To itself: check for silent nodes.
    void(ConfirmLoss)>;                // To itself: act on a loss unless it has been handled.

}  // namespace troupe
// clang-format on
