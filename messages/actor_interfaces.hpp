#pragma once
// Every actor's interface, one sentence per message. The README draws a request's way through them.

#include "messages/type_ids.hpp"

// clang-format off
namespace troupe {

/// One per device: holds the weights and the KV cache, runs the model.
using WorkerActor = ActorOf<
    ModelLoaded(LoadModel),            // Load the weights; LoadProgress goes to the asker meanwhile.
    Status(InitializeKVCache),         // Take the memory of the KV cache.
    void(JoinGroup),                   // Meet the other ranks.
    void(SchedulerOutput),             // Run a step; ModelRunnerOutput or StepFailed goes to the sender.
    void(GrammarOutput)>;              // Sample a structured step; the answer goes to the sender.

/// What an Executor needs of its workers: a Worker, or those of a host behind their rings.
using StepRunnerActor = ActorOf<
    void(JoinGroup),                   // Meet the other ranks.
    void(SchedulerOutput),             // Run a step; every rank answers the sender.
    void(GrammarOutput)>;              // Sample a structured step; every rank answers the sender.

/// Whom a Worker answers: its Executor, or the end of the rings that lead there.
using StepSinkActor = ActorOf<
    void(ModelRunnerOutput),           // A worker's result.
    void(StepFailed)>;                 // A worker's failure.

/// The group of workers of one engine.
using ExecutorActor = ActorOf<
    void(SchedulerOutput),             // Run a step on every worker; the result goes to the sender.
    void(GrammarOutput),               // What every worker needs to sample a structured step.
    void(ModelRunnerOutput),           // A worker's result.
    void(StepFailed)>;                 // A worker's failure.

/// Decides what runs: schedule, execute, update, and again.
using SchedulerActor = ActorOf<
    void(EngineCoreRequests),          // Queue the samples of a request.
    void(AbortRequests),               // End these wherever they are.
    CachesReset(ResetCaches),          // Forget what is cached, between two steps.
    PauseStatus(PauseScheduler),       // Compute nothing more; answered when nothing runs.
    PauseStatus(ResumeScheduler),      // Go on.
    PauseStatus(AskPaused),            // Is it paused, or about to be?
    void(ModelRunnerOutput),           // The result of the step in flight.
    void(StepFailed),                  // The step in flight gave no result.
    void(GrammarCompiled),             // To itself: the grammar of a structured request is there.
    void(WakeUp)>;                     // To itself: look again, without news from others.

/// Which blocks of the KV cache each request holds, and which hold what another is about to compute.
using KVCacheManagerActor = ActorOf<
    void(KVCacheUpdates),              // What happened to requests.
    SlotsAllocated(AllocateSlots),     // Blocks for running requests, in order, until one does not fit.
    PrefixHit(LookupPrefix),           // How much of a waiting request is cached?
    RequestAdmitted(AdmitRequest),     // Take a waiting request in.
    BlockOps(GetBlockOps),          // What must be done to blocks before the step computes?
    BlockTableRead(ReadBlockTable),    // Which blocks does an ended request hold?
    InvalidBlocksFound(FindInvalidBlocks),  // How far are these requests valid without these blocks?
    PrefixCacheReset(ResetPrefixCache)>;  // Forget what is cached.

/// Tells those outside what the prefix cache holds.
using KVEventPublisherActor = ActorOf<
    void(KVEventBatch)>;               // What became of the cache in a step.

/// Which outputs of the multimodal encoder are kept, and for whom.
using EncoderCacheManagerActor = ActorOf<
    void(EncoderCacheUpdates),         // What happened to requests.
    EncoderInputsPlanned(PlanEncoderInputs),        // Which items does this piece of a prompt need encoded?
    FreedEncoderOutputs(TakeFreedEncoderOutputs)>;  // Which outputs may the workers forget?

/// Tokens to text; joins the samples of a request.
using OutputProcessorActor = ActorOf<
    Status(Subscribe),                 // Send the RequestOutputs of every step to the sender.
    Status(OutputRequest),             // Expect outputs of this request; answered before the Scheduler hears of it.
    void(EngineCoreOutputs),           // What a step produced; the sender is told of requests that a stop string ended.
    void(AbortRequests)>;              // The client is gone: finish these without it.

/// Text to tokens; checks what a client asks for. Its workers do so, several at a time.
using InputProcessorActor = ActorOf<
    void(GenerateRequest),             // Prepare a request and start it; an error goes to the sender as RequestOutputs.
    void(AbortRequests),               // The client is gone: end these here and in every actor behind.
    RenderReply(RenderRequest)>;       // What would this prompt become?

/// One of the threads of an InputProcessor.
using InputWorkerActor = ActorOf<
    Status(PrepareInput)>;             // Prepare what lies on the desk.

}  // namespace troupe

// Handles that travel in messages.
CAF_BEGIN_TYPE_ID_BLOCK(troupe_handles, caf::id_block::troupe_local::end)
CAF_ADD_TYPE_ID(troupe_handles, (troupe::SchedulerActor))
CAF_ADD_TYPE_ID(troupe_handles, (troupe::OutputProcessorActor))
CAF_ADD_TYPE_ID(troupe_handles, (troupe::InputProcessorActor))
CAF_ADD_TYPE_ID(troupe_handles, (std::vector<troupe::InputProcessorActor>))
CAF_END_TYPE_ID_BLOCK(troupe_handles)

namespace troupe {

/// Whom the RequestRouter gives what comes of requests: any actor that submits some.
using RequestClientActor = ActorOf<
    void(RequestOutputs)>;             // What a step produced of the client's requests, as text.

/// The way into the engine: keeps requests until they have ended, and shares them out to the groups.
using RequestRouterActor = ActorOf<
    FrontendConnected(ConnectFrontend),  // An HTTP server begins.
    void(SubmitRequest),               // A client's request; what comes of it goes to the sender.
    void(AbortRequests),               // The sender wants these no more.
    RenderReply(RenderRequest),        // What would this prompt become? Handed on to an InputProcessor.
    CachesReset(ResetCaches),          // Handed on to the Scheduler of each group.
    PauseStatus(PauseScheduler),       // Handed on to each Scheduler, also to those that come later.
    PauseStatus(ResumeScheduler),      // Handed on to each Scheduler.
    PauseStatus(AskPaused),            // Is it paused, or about to be?
    void(RequestOutputs),              // What a step produced, as text.
    void(EngineLost),                  // A group's engine ends: its requests go on in another one.
    void(EngineReady, std::vector<InputProcessorActor>, OutputProcessorActor, SchedulerActor),
                                       // A group has an engine: give it requests.
    Status(DrainGroup),                // Give it no more requests, wait for those that run, end it.
    void(GroupDrainTimeout),           // To itself: what still runs in it goes on elsewhere.
    TopologyStatus(AskTopology),       // Handed on to the Supervisor.
    void(EngineHealth),                // Whether there is, or will be, an engine.
    Drained(Drain),                    // Refuse new requests, wait for those that run.
    void(DrainProgress),               // To itself: out of time.
    void(WakeUp)>;                     // To itself: the time of a request that waits may be up.

/// The HTTP server. Its threads ask through it, it asks the RequestRouter.
using FrontendActor = ActorOf<
    Listening(Listen),                 // Open the port.
    void(SubmitRequest),               // From the server's threads: a client's request.
    void(AbortRequests),               // From the server's threads: clients that are gone.
    RenderReply(RenderRequest),        // This and the six that follow are handed on.
    CachesReset(ResetCaches),
    PauseStatus(PauseScheduler),
    PauseStatus(ResumeScheduler),
    PauseStatus(AskPaused),
    Status(DrainGroup),
    TopologyStatus(AskTopology),
    void(RequestOutputs),              // What a step produced, as text.
    void(RouterReport),                // What has happened to the groups.
    void(RouterReady, ActorHandles),   // There is another RequestRouter: requests go on there.
    Drained(Drain),                    // Refuse new requests, wait for those that run.
    void(DrainProgress),               // To itself: idle, or out of time.
    void(WakeUp),                      // To itself: the time of a request that waits may be up.
    void(LogStats)>;                   // To itself: a line of statistics is due.

/// A process in which actors are placed: starts what it is asked to.
using NodeActor = ActorOf<
    Status(PrepareNode),               // Read what the node's roles need.
    Replies<Status, ActorHandles>(SpawnWorker),              // Start a Worker.
    Replies<Status, ActorHandles>(SpawnRole, ActorHandles),  // Start the actors of a role; beside it those they speak with.
    void(OpenRings),                   // From the Executor's node: where the steps of a Worker come from.
    void(RouterReady, ActorHandles),   // For the node's Frontend: there is another RequestRouter.
    void(CheckNodes),                  // To itself: are the Supervisor and the other nodes still there?
    void(LeaveNode)>;                  // End every actor of the node.

/// Shows that the actors of a node get to run.
using HeartActor = ActorOf<
    void(Heartbeat)>;                  // HeartbeatReply goes to the sender.

/// The root: spawns all of them in order, watches them, starts anew what ends, stops them in reverse order.
using SupervisorActor = ActorOf<
    Started(Start),                    // Load the model and start the engine.
    Stopped(Stop),                     // Drain, then end every actor.
    void(LoadProgress),                // A worker is still loading.
    NodeAccepted(JoinNode, ActorHandles),  // A node offers itself; beside it its NodeActor and its HeartActor.
    void(NodeConnected),               // The sender, a node, can reach the others.
    void(HeartbeatReply),              // The sender, a node's heart, beats.
    Status(EndGroup),                  // Its requests are elsewhere: end a group.
    TopologyStatus(AskTopology),       // What runs where?
    void(NodeExited),                  // To itself: a process that it had started is gone.
    void(CheckNodes),                  // To itself: who has been silent for too long?
    void(ConfirmLoss)>;                // To itself: is what was lost still lost?

}  // namespace troupe
// clang-format on
