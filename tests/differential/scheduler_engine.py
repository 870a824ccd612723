"""vLLM's own Scheduler, built from the configuration of a trace and driven by a trace's operations.

No model is loaded and no worker runs: an operation brings the tokens, drafts and transfer reports that a worker would
have sent. The format of configurations, operations, results and states is that of the recorded traces, which
tests/support/trace_replay.cpp reads.
"""
import logging
import math
import os
import types

import torch
from vllm.config import VllmConfig
from vllm.config.speculative import SpeculativeConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, SupportsHMA
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import RepetitionDetectionParams, SamplingParams, StructuredOutputsParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import scheduler as scheduler_module
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (ChunkedLocalAttentionSpec, FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec,
                                        MambaSpec, SlidingWindowSpec)
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

logging.disable(logging.CRITICAL)

WRITES_EVERY_QUEUE = 96  # blocks; the free queue of a larger pool is written only every QUEUE_INTERVAL lines
QUEUE_INTERVAL = 16


class Settings(types.SimpleNamespace):
    """What the scheduler reads of a VllmConfig, with its own rules for what follows from the rest."""

    max_concurrent_batches = VllmConfig.max_concurrent_batches
    max_in_flight_tokens = VllmConfig.max_in_flight_tokens
    num_speculative_tokens = VllmConfig.num_speculative_tokens
    num_lookahead_tokens = VllmConfig.num_lookahead_tokens
    num_prefill_lookahead_tokens = VllmConfig.num_prefill_lookahead_tokens


class SpeculativeSettings(types.SimpleNamespace):
    max_num_new_slots_for_drafting = SpeculativeConfig.max_num_new_slots_for_drafting
    use_eagle = SpeculativeConfig.use_eagle
    use_eagle_block_drop = SpeculativeConfig.use_eagle_block_drop
    use_dflash = SpeculativeConfig.use_dflash
    use_dspark = SpeculativeConfig.use_dspark
    uses_draft_model = SpeculativeConfig.uses_draft_model
    use_multi_module_mtp = SpeculativeConfig.use_multi_module_mtp


def cache_group(group, index):
    kind, attention = group["kind"], dict(block_size=group["block_size"], num_kv_heads=1, head_size=1,
                                          dtype=torch.float32)
    if kind == "full":
        spec = FullAttentionSpec(**attention)
    elif kind == "sliding_window":
        spec = SlidingWindowSpec(**attention, sliding_window=group["sliding_window"],
                                 extra_retained_tokens=group.get("extra_retained_tokens", 0))
    elif kind == "chunked_local":
        spec = ChunkedLocalAttentionSpec(**attention, attention_chunk_size=group["attention_chunk_size"])
    else:
        spec = MambaSpec(block_size=group["block_size"], shapes=((1,),), dtypes=(torch.float32,),
                         mamba_cache_mode=group["mode"], num_speculative_blocks=group.get("num_speculative_blocks", 0),
                         num_prefill_checkpoint_blocks=group.get("num_prefill_checkpoint_blocks", 0),
                         prefill_checkpoint_alignment=group.get("prefill_checkpoint_alignment"))
    return KVCacheGroupSpec([f"layer{index}"], spec, is_eagle_group=group.get("eagle", False))


def cache_config(cfg):
    return KVCacheConfig(num_blocks=cfg["num_blocks"], kv_cache_tensors=[],
                         kv_cache_groups=[cache_group(group, i) for i, group in enumerate(cfg["groups"])],
                         prefix_cache_retention_interval=cfg["retention_interval"])


def speculative_settings(spec):
    return SpeculativeSettings(
        method=spec["method"], num_speculative_tokens=spec["k"], parallel_drafting=spec.get("parallel_drafting", False),
        disable_eagle_block_drop=spec.get("disable_eagle_block_drop", False),
        draft_model_config=types.SimpleNamespace(
            hf_config=types.SimpleNamespace(num_nextn_predict_layers=spec.get("mtp_layers", 1))),
        num_speculative_tokens_per_batch_size=[tuple(each) for each in spec["dynamic"]] if spec.get("dynamic") else None)


def scheduler_settings(cfg):
    block_sizes = [group["block_size"] for group in cfg["groups"]]
    modes = [group["mode"] for group in cfg["groups"] if group["kind"] == "mamba"]
    role = cfg["connector"]["role"] if cfg.get("connector") else ""
    return Settings(
        use_v2_model_runner=cfg["v2_runner"], is_mm_encoder_only=False, ec_transfer_config=None, diffusion_config=None,
        speculative_config=speculative_settings(cfg["spec"]) if cfg.get("spec") else None,
        lora_config=types.SimpleNamespace(max_loras=cfg["lora"]["max_loras"]) if cfg.get("lora") else None,
        kv_events_config=types.SimpleNamespace(enable_kv_cache_events=cfg.get("kv_events", False), publisher="null"),
        kv_transfer_config=types.SimpleNamespace(
            kv_load_failure_policy=cfg["connector"]["failure_policy"], is_kv_consumer=role != "kv_producer",
            is_kv_producer=role != "kv_consumer") if role else None,
        parallel_config=types.SimpleNamespace(
            pipeline_parallel_size=cfg["pp"], decode_context_parallel_size=1, prefill_context_parallel_size=1,
            data_parallel_index=0),
        observability_config=types.SimpleNamespace(
            kv_cache_metrics=False, enable_logging_iteration_details=False, enable_mfu_metrics=False,
            per_request_spec_decode_metrics="none"),
        ec_manager_config=types.SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=types.SimpleNamespace(enabled=False),
        model_config=types.SimpleNamespace(
            uses_mrope=False, is_encoder_decoder=False, is_diffusion=False, max_model_len=cfg["max_model_len"],
            runner_type=cfg.get("runner", "generate"), supports_multimodal_inputs="mm" in cfg,
            return_sampling_mask=False, skip_tokenizer_init=True),
        cache_config=types.SimpleNamespace(
            num_gpu_blocks=cfg["num_blocks"], enable_prefix_caching=cfg["prefix_caching"],
            block_size=min(block_sizes), prefix_match_unit=cfg.get("prefix_match_unit"),
            mamba_cache_mode="align" if "align" in modes else "none",
            enable_mamba_shared_prefix_checkpoint=cfg.get("mamba_shared_prefix_checkpoint", False)),
        scheduler_config=types.SimpleNamespace(
            max_num_seqs=cfg["max_num_seqs"], max_num_active_seqs=cfg.get("max_num_active_seqs"),
            max_num_scheduled_tokens=cfg.get("max_num_scheduled_tokens"),
            max_num_batched_tokens=cfg["max_num_batched_tokens"],
            long_prefill_token_threshold=cfg["long_prefill_token_threshold"],
            long_prefill_token_threshold_adaptive=cfg.get("long_prefill_adaptive", False), policy=cfg["policy"],
            watermark=cfg["watermark"], scheduler_reserve_full_isl=cfg["reserve_full_isl"],
            enable_chunked_prefill=cfg["enable_chunked_prefill"],
            disable_chunked_mm_input=cfg.get("disable_chunked_mm_input", False),
            async_scheduling=cfg["async_scheduling"]))


class Grammar:
    """Accepts token t if t mod m = n mod m, n being the number of tokens accepted before."""

    def __init__(self, modulus):
        self.modulus, self.num_accepted = modulus, 0

    def accept_tokens(self, _, tokens):
        for token in tokens:
            if token % self.modulus != self.num_accepted % self.modulus:
                return False
            self.num_accepted += 1
        return True

    def validate_tokens(self, tokens):
        valid = []
        for token in tokens:
            if token % self.modulus != (self.num_accepted + len(valid)) % self.modulus:
                break
            valid.append(token)
        return valid

    def rollback(self, count):
        self.num_accepted -= count

    def fill_bitmask(self, bitmask, row):
        bitmask[row] = self.num_accepted % self.modulus

    def is_terminated(self):
        return False


def grammar_manager(settings):
    """vLLM's manager, whose masks have one number: the remainder that the grammar takes, or -1."""
    manager = object.__new__(StructuredOutputManager)
    manager.vllm_config = settings
    manager.backend = types.SimpleNamespace(
        allocate_token_bitmask=lambda count: torch.zeros((count, 1), dtype=torch.int32))
    manager.fill_bitmask_parallel_threshold = math.inf
    manager.enable_in_reasoning = True
    manager._grammar_bitmask = None
    manager._full_mask = torch.tensor(-1, dtype=torch.int32)
    return manager


class ScriptedConnector(KVConnectorBase_V1, SupportsHMA):
    """Answers as the `remote` script of a request says, and writes down each call."""

    def __init__(self, role):
        self.delivers = role != "kv_consumer"
        self.pending_frees = False
        self.scripts = {}
        self.calls = []

    @property
    def requires_kv_delivery(self):
        return self.delivers

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        script = self.scripts.get(request.request_id)
        if script is None:
            answer = 0, False
        elif script.get("defer", 0) > 0:
            script["defer"] -= 1
            answer = None, False
        else:
            count = max(0, script.get("tokens", 0) - num_computed_tokens)
            answer = count, bool(script.get("async")) and count > 0
        self.calls.append(dict(fn="match", id=request.request_id, computed=num_computed_tokens, ret=list(answer)))
        return answer

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.calls.append(dict(fn="alloc", id=request.request_id, ext=num_external_tokens,
                               blocks=[list(ids) for ids in blocks.get_block_ids()]))

    def request_finished_all_groups(self, request, block_ids):
        script = self.scripts.get(request.request_id) or {}
        params = script.get("params")
        answer = bool(script.get("delay")), None if params is None else dict(params)
        self.calls.append(dict(fn="finished", id=request.request_id, status=request.status.name,
                               blocks=[list(ids) for ids in block_ids],
                               ret=[answer[0], None if params is None else dict(params)]))
        return answer

    def has_pending_block_frees(self):
        return self.pending_frees

    def reset_cache(self):
        self.calls.append(dict(fn="reset_cache", ret=True))
        return True

    def bind_kv_cache_manager(self, kv_cache_manager):
        pass

    def build_connector_meta(self, scheduler_output):
        return None

    def get_loaded_kv_cache_group_ids(self, request):
        return ()

    # The worker's side.
    def start_load_kv(self, forward_context, **_):
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name):
        raise NotImplementedError

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **_):
        raise NotImplementedError

    def wait_for_save(self):
        raise NotImplementedError


class EventList:
    def __init__(self):
        self.events = []

    def publish(self, batch):
        self.events += batch.events

    def take(self):
        events, self.events = self.events, []
        return events


def external_hash(value):
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else f"{value:016x}"


def event_row(event):
    kind = type(event).__name__
    if kind == "AllBlocksCleared":
        return dict(ev="cleared")
    hashes = [external_hash(each) for each in event.block_hashes]
    if kind == "BlockRemoved":
        return dict(ev="removed", hashes=hashes, medium=event.medium, group=event.group_idx)
    keys = event.extra_keys
    if keys is not None:
        keys = [None if each is None else [list(key) if isinstance(key, tuple) else key for key in each]
                for each in keys]
    return dict(ev="stored", hashes=hashes, parent=external_hash(event.parent_block_hash), tokens=list(event.token_ids),
                block_size=event.block_size, lora_id=event.lora_id, lora_name=event.lora_name, medium=event.medium,
                extra_keys=keys, group=event.group_idx, kind=event.kv_cache_spec_kind,
                window=event.kv_cache_spec_sliding_window, session=event.session_id)


def set_hashing(cfg):
    """The parent of the first block and the form of hashes in events are settings of the whole process."""
    kv_cache_utils.NONE_HASH = kv_cache_utils.BlockHash(sha256_cbor(cfg["hash"]["none_seed"]))
    os.environ["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "0" if cfg.get("event_hashes") == "bytes" else "1"


def make_request(req, block_hasher):
    """The request that `req` of a trace describes."""
    features = []
    for item in req.get("mm") or ():
        mask = item.get("mask")
        if mask is not None:
            mask = torch.tensor([each == "1" for each in mask])
        features.append(MultiModalFeatureSpec(data=None, modality="image", identifier=item["hash"],
                                              mm_position=PlaceholderRange(item["offset"], item["length"], mask),
                                              mm_hash=item["hash"]))
    skips = req.get("skip_reading_prefix_cache")
    sampling, pooling = None, None
    if req.get("pooling"):
        pooling = PoolingParams(task="embed", skip_reading_prefix_cache=skips)
    else:
        repetition = req.get("repetition")
        if repetition is not None:
            repetition = RepetitionDetectionParams(max_pattern_size=repetition[0], min_pattern_size=repetition[1],
                                                   min_count=repetition[2])
        mode = req.get("kv_cache_report_mode")
        sampling = SamplingParams(
            temperature=0, max_tokens=req["max_tokens"], min_tokens=req.get("min_tokens") or 0,
            stop_token_ids=list(req.get("stop_token_ids") or ()), repetition_detection=repetition,
            skip_reading_prefix_cache=skips,
            structured_outputs=StructuredOutputsParams(regex="a") if req.get("structured") else None,
            extra_args=None if mode is None else dict(kv_cache_report_mode=mode))
        sampling._eos_token_id = req.get("eos_token_id")
    lora = req.get("lora")
    return Request(
        request_id=req["id"], prompt_token_ids=list(req["prompt"]), sampling_params=sampling, pooling_params=pooling,
        client_index=req.get("client") or 0, arrival_time=req["arrival"], mm_features=features,
        lora_request=None if lora is None else LoRARequest(lora["name"], lora["id"], lora["path"]),
        cache_salt=req.get("salt"), priority=req.get("priority") or 0, block_hasher=block_hasher,
        resumable=bool(req.get("resumable")), session_id=req.get("session"))


def queue_digest(ids):
    digest = 0x811C9DC5
    for block in ids:
        for byte in block.to_bytes(4, "little"):
            digest = (digest ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{digest:08x}"


def free_ids(block_pool):
    return [block.block_id for block in block_pool.free_block_queue.get_all_free_blocks()]


class Changes:
    """Keeps what was written last, and gives what has changed since then."""

    def __init__(self):
        self.written = {}

    def note(self, state, key, value):
        if key not in self.written or self.written[key] != value:
            self.written[key] = value
            state[key] = value


class Engine:
    """One trace: apply() makes an operation and gives its `out` and `st`."""

    def __init__(self, cfg):
        self.cfg = cfg
        set_hashing(cfg)
        self.settings = scheduler_settings(cfg)
        groups = cache_config(cfg)
        block_size, hash_block_size = kv_cache_utils.resolve_kv_cache_block_sizes(groups, self.settings)
        self.hasher = None
        if cfg["prefix_caching"] or cfg.get("connector"):
            self.hasher = kv_cache_utils.get_request_block_hasher(hash_block_size, sha256_cbor)
        self.hex_chars = cfg["hash"]["hex_chars"]
        if cfg.get("connector"):
            self.connector = ScriptedConnector(cfg["connector"]["role"])
            KVConnectorFactory.create_connector = lambda **_: self.connector
        else:
            self.connector = None
        scheduler_module.MultiModalBudget = lambda *_: types.SimpleNamespace(
            encoder_compute_budget=cfg["mm"]["compute_budget"], encoder_cache_size=cfg["mm"]["cache_size"])
        kind = AsyncScheduler if cfg["async_scheduling"] else Scheduler
        self.scheduler = kind(self.settings, groups, grammar_manager(self.settings), block_size,
                              hash_block_size=hash_block_size, mm_registry=None,
                              include_finished_set=cfg["include_finished_set"], log_stats=True)
        self.events = EventList()
        self.scheduler.kv_event_publisher = self.events
        self.steps = {}  # SchedulerOutputs that wait for their update
        self.changes = Changes()
        self.rows, self.tables, self.hashes = {}, {}, {}
        self.num_lines = 0
        self.written_queue = None

    @property
    def manager(self):
        return self.scheduler.kv_cache_manager

    def derived(self):
        """What follows from the configuration, as a trace's header has it."""
        scheduler, coordinator = self.scheduler, self.manager.coordinator
        spec = self.settings.speculative_config
        return dict(
            scheduler_block_size=scheduler.block_size, hash_block_size=scheduler.hash_block_size,
            cache_block_size=self.settings.cache_config.block_size,
            max_num_scheduled_tokens=scheduler.max_num_scheduled_tokens,
            max_num_active_reqs=scheduler.max_num_active_reqs, max_in_flight_tokens=self.settings.max_in_flight_tokens,
            max_concurrent_batches=self.settings.max_concurrent_batches, num_spec_tokens=scheduler.num_spec_tokens,
            num_lookahead_tokens=scheduler.num_lookahead_tokens, num_prefill_lookahead=scheduler.num_prefill_lookahead,
            draft_slots=spec.max_num_new_slots_for_drafting if spec else 0,
            eagle_block_drop=scheduler.use_eagle_block_drop, eagle_group_ids=sorted(coordinator.eagle_group_ids),
            dynamic_sd_lookup=scheduler.dynamic_sd_lookup, watermark_blocks=self.manager.watermark_blocks,
            needs_zeroing=scheduler.needs_kv_cache_zeroing, defer_block_free=scheduler.defer_block_free,
            requires_kv_delivery=scheduler.requires_kv_delivery,
            partial_hash_hits=bool(getattr(coordinator, "enable_partial_hash_hits", False)),
            max_admission_blocks=[manager.max_admission_blocks_per_request
                                  for manager in coordinator.single_type_managers],
            none_hash=kv_cache_utils.NONE_HASH.hex())

    def apply(self, operation):
        inputs = dict(operation)
        out = getattr(self, "make_" + inputs.pop("op"))(**inputs) or {}
        if self.connector is not None and self.connector.calls:
            out["conn"], self.connector.calls = self.connector.calls, []
        return out, self.state()

    def hex(self, block_hash):
        return block_hash.hex()[:self.hex_chars]

    def make_add(self, req):
        is_new = req["id"] not in self.scheduler.requests
        if self.connector is not None and req.get("remote") is not None:
            self.connector.scripts[req["id"]] = dict(req["remote"])
        request = make_request(req, self.hasher)
        self.scheduler.add_request(request)
        kept = self.scheduler.requests.get(req["id"])
        out = dict(status=None if kept is None else kept.status.name)
        if is_new:
            self.hashes[req["id"]] = [*request.block_hashes]
            out["hashes"] = [self.hex(each) for each in request.block_hashes]
        return out

    def make_sched(self, k, throttle=False):
        step = self.scheduler.schedule(throttle)
        self.steps[k] = step
        is_v2, uses_pp = self.cfg["v2_runner"], self.cfg["pp"] > 1 and not self.cfg["async_scheduling"]
        new = []
        for each in step.scheduled_new_reqs:
            row = dict(id=each.req_id, blocks=lists(each.block_ids), computed=each.num_computed_tokens)
            if is_v2:
                row["prefill_len"] = len(each.prefill_token_ids)
            new.append(row)
        cached, data = [], step.scheduled_cached_reqs
        for i, request_id in enumerate(data.req_ids):
            row = dict(id=request_id, resumed=request_id in data.resumed_req_ids, blocks=lists(data.new_block_ids[i]),
                       computed=data.num_computed_tokens[i], nout=data.num_output_tokens[i])
            if uses_pp:
                row["tok"] = list(data.new_token_ids[i])
            if request_id in data.all_token_ids:
                row["all_len"] = len(data.all_token_ids[request_id])
            cached.append(row)
        out = dict(new=new, cached=cached, num=[list(each) for each in step.num_scheduled_tokens.items()],
                   total=step.total_num_scheduled_tokens, finished=sorted(step.finished_req_ids),
                   preempted=sorted(step.preempted_req_ids or ()))
        optional = dict(spec={key: list(drafts) for key, drafts in step.scheduled_spec_decode_tokens.items()},
                        enc={key: list(items) for key, items in step.scheduled_encoder_inputs.items()},
                        free_mm=list(step.free_encoder_mm_hashes), zero=step.new_block_ids_to_zero,
                        copies=[[copy.src_block_id, copy.dst_block_id] for copy in step.kv_cache_block_copies or ()],
                        sync_loads=step.has_sync_kv_loads, structured=step.has_structured_output_requests,
                        pending_structured=step.pending_structured_output_tokens)
        out |= {key: value for key, value in optional.items() if value}
        if self.cfg.get("spec"):
            out["next_k"] = step.num_spec_tokens_to_schedule
        return out

    def make_update(self, k, toks, pooled=(), kv=None):
        step = self.steps.pop(k)
        ids = [request_id for request_id, _ in toks]
        report = None
        if kv is not None:
            report = KVConnectorOutput(finished_sending=kv.get("sent"), finished_recving=kv.get("recved"),
                                       invalid_block_ids=set(kv.get("invalid") or ()),
                                       failed_recving=set(kv.get("failed") or ()))
        pooling = None
        if self.cfg.get("runner") == "pooling":
            pooling = [torch.zeros(1) if request_id in pooled else None for request_id in ids]
        outputs = self.scheduler.update_from_output(step, ModelRunnerOutput(
            req_ids=ids, req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=[list(tokens) for _, tokens in toks], pooler_output=pooling, kv_connector_output=report))
        out = dict(outs=[self.output_row(each, client) for client in sorted(outputs)
                         for each in outputs[client].outputs])
        finished = {str(client): sorted(each.finished_requests) for client, each in outputs.items()
                    if each.finished_requests}
        if finished:
            out["finished"] = finished
        for each in outputs.values():
            if each.scheduler_stats is not None:
                out["stats"] = self.stats_row(each.scheduler_stats)
        events = [event_row(event) for event in self.events.take()]
        if events:
            out["events"] = events
        return out

    @staticmethod
    def output_row(output, client):
        row = dict(id=output.request_id, toks=list(output.new_token_ids))
        if client:
            row["client"] = client
        if output.finish_reason is not None:
            row["fin"] = str(output.finish_reason)
        if output.stop_reason is not None:
            row["stop_reason"] = output.stop_reason
        if output.pooling_output is not None:
            row["pooled"] = True
        if output.kv_transfer_params is not None:
            row["kv_params"] = output.kv_transfer_params
        stats = output.prefill_stats
        if stats is not None:
            row["prefill"] = [stats.num_prompt_tokens, stats.num_computed_tokens, stats.num_cached_tokens,
                              stats.num_local_cached_tokens, stats.num_external_cached_tokens,
                              stats.num_cache_creation_tokens]
        return row

    def stats_row(self, stats):
        row = dict(running=stats.num_running_reqs, waiting=stats.num_waiting_reqs,
                   skipped=stats.num_skipped_waiting_reqs)
        for key, cache in (("prefix", stats.prefix_cache_stats), ("ext_prefix", stats.connector_prefix_cache_stats)):
            if cache is not None:
                numbers = [cache.requests, cache.queries, cache.hits, cache.preempted_requests, cache.preempted_queries,
                           cache.preempted_hits, cache.reset]
                if any(numbers):
                    row[key] = numbers
        if self.connector is not None:
            row["fetch"] = [stats.num_kv_fetch_reqs_by_stage[stage] for stage in scheduler_module.KV_FETCH_STAGES]
        spec = stats.spec_decoding_stats
        if spec is not None:
            row["spec"] = [spec.num_drafts, spec.num_draft_tokens, spec.num_accepted_tokens,
                           list(spec.num_accepted_tokens_per_pos), list(spec.num_draft_tokens_per_pos)]
        return row

    def make_drafts(self, d):
        self.scheduler.update_draft_token_ids(draft_ids(d))

    def make_drafts_in_output(self, k, d):
        step = self.steps[k]
        self.scheduler.update_draft_token_ids_in_output(draft_ids(d), step)
        return dict(spec={key: list(drafts) for key, drafts in step.scheduled_spec_decode_tokens.items()},
                    invalid=dict(step.num_invalid_spec_tokens or {}))

    def make_grammar(self, id, ok, mod=None):
        request = self.scheduler.requests.get(id)
        if request is not None:
            request.structured_output_request.grammar = Grammar(mod) if ok else ValueError("no grammar")

    def make_bitmask(self, k):
        masks = self.scheduler.get_grammar_bitmask(self.steps[k])
        if masks is None:
            return dict(ids=None)
        return dict(ids=list(masks.structured_output_request_ids), acceptable=list(masks.num_acceptable_drafts),
                    rows=[int(row[0]) for row in masks.grammar_bitmask])

    def make_finish(self, id, status):
        done = self.scheduler.finish_requests(id, RequestStatus[status])
        return dict(done=[request.request_id for request in done])

    def make_reset_prefix_cache(self, running, connector=False):
        try:
            return dict(ok=self.scheduler.reset_prefix_cache(running, connector))
        except RuntimeError:
            return dict(ok=None, raised=True)

    def make_reset_encoder_cache(self):
        self.scheduler.reset_encoder_cache()

    def make_pause(self, state):
        self.scheduler.set_pause_state(PauseState(state))

    def make_conn(self, pending_frees):
        self.connector.pending_frees = pending_frees

    def state(self):
        scheduler, note = self.scheduler, self.changes.note
        queue = free_ids(self.manager.block_pool)
        state = dict(free=len(queue), fq=queue_digest(queue))
        if queue != self.written_queue and (self.cfg["num_blocks"] <= WRITES_EVERY_QUEUE
                                            or self.num_lines % QUEUE_INTERVAL == 0):
            state["fql"] = self.written_queue = queue
        self.num_lines += 1
        note(state, "cached", len(self.manager.block_pool.cached_block_hash_to_block))
        note(state, "run", [request.request_id for request in scheduler.running])
        note(state, "wait", [request.request_id for request in scheduler.waiting])
        note(state, "hold", [request.request_id for request in scheduler.kv_holding_waiting])
        note(state, "def", sorted(request.request_id for request in scheduler.deferred_waiting))
        note(state, "unfinished", scheduler.get_num_unfinished_requests())
        note(state, "has", scheduler.has_requests())
        if "mm" in self.cfg:
            cache = scheduler.encoder_cache_manager
            note(state, "enc", dict(free=cache.num_free_slots, freeable=cache.num_freeable_slots,
                                    cached={key: sorted(users) for key, users in cache.cached.items()},
                                    lru=list(cache.freeable)))
        if scheduler.defer_block_free:
            note(state, "deferred_frees", [[fence, [block.block_id for block in blocks]]
                                           for fence, blocks in scheduler.deferred_frees])
        if self.cfg["async_scheduling"] or self.cfg["pp"] > 1:
            note(state, "step", scheduler.current_step)
        self.note_requests(state)
        return state

    def note_requests(self, state):
        rows, tables, hashes = {}, {}, {}
        for request_id, request in self.scheduler.requests.items():
            row = [request.status.name, request.num_computed_tokens, request.num_tokens, request.num_output_tokens,
                   request.num_output_placeholders, request.num_in_flight_tokens, request.num_stale_output_tokens,
                   request.num_preemptions, len(request.spec_token_ids), request.shared_prefix_boundary]
            if self.rows.get(request_id) != row:
                rows[request_id] = self.rows[request_id] = row
            table = lists(self.manager.get_block_ids(request_id))
            if self.tables.get(request_id) != table:
                tables[request_id] = self.tables[request_id] = table
            before, now = self.hashes[request_id], request.block_hashes
            if before != now:
                common = next((i for i, pair in enumerate(zip(before, now)) if pair[0] != pair[1]),
                              min(len(before), len(now)))
                hashes[request_id] = [common, [self.hex(each) for each in now[common:]]]
                self.hashes[request_id] = [*now]
        for request_id in [each for each in self.rows if each not in self.scheduler.requests]:
            del self.rows[request_id], self.tables[request_id], self.hashes[request_id]
            rows[request_id] = None
        state |= {key: value for key, value in (("reqs", rows), ("bt", tables), ("nh", hashes)) if value}


def lists(table):
    return None if table is None else [list(ids) for ids in table]


def draft_ids(drafts):
    return DraftTokenIds([request_id for request_id, _ in drafts], [list(tokens) for _, tokens in drafts])
