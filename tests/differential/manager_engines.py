"""vLLM's own EncoderCacheManager and KVCacheManager, without a scheduler, driven by the direct calls of a trace.

As scheduler_engine.py, whose Engine has the same functions.
"""
import types

from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import RequestStatus

from scheduler_engine import (Changes, cache_config, event_row, free_ids, lists, make_request, queue_digest,
                              set_hashing)


class EncoderCache:
    """One trace of family `enc`; `requests` (id -> Request) are all that were made."""

    def __init__(self, cfg):
        self.manager = EncoderCacheManager(cfg["cache_size"])
        self.requests = {}

    def derived(self):
        return {}

    def apply(self, operation):
        inputs = dict(operation)
        out = getattr(self, "make_" + inputs.pop("op"))(**inputs) or {}
        cache = self.manager
        return out, dict(free=cache.num_free_slots, freeable=cache.num_freeable_slots,
                         cached={key: sorted(users) for key, users in cache.cached.items()},
                         lru=[list(each) for each in cache.freeable.items()], freed=list(cache.freed))

    def make_new(self, req):
        request = self.requests[req["id"]] = make_request(req, None)
        return dict(embeds=[request.get_num_encoder_embeds(i) for i in range(len(request.mm_features))])

    def make_embeds(self, id, i):
        return dict(n=self.manager.get_cached_num_encoder_embeds(self.requests[id], i))

    def make_check(self, id, i):
        return dict(hit=self.manager.check_and_update_cache(self.requests[id], i))

    def make_can(self, id, i, budget, sched):
        return dict(ok=self.manager.can_allocate(self.requests[id], i, budget, sched))

    def make_allocate(self, id, i):
        self.manager.allocate(self.requests[id], i)

    def make_ids(self, id):
        return dict(ids=sorted(self.manager.get_cached_input_ids(self.requests[id])))

    def make_free_input(self, id, i):
        self.manager.free_encoder_input(self.requests[id], i)

    def make_free(self, id):
        self.manager.free(self.requests[id])

    def make_freed(self):
        return dict(hashes=self.manager.get_freed_mm_hashes())

    def make_reset(self):
        self.manager.reset()


def hashing_settings(cfg):
    """What the sizes of blocks and of block hashes follow from."""
    return types.SimpleNamespace(
        kv_transfer_config=None, parallel_config=types.SimpleNamespace(decode_context_parallel_size=1),
        cache_config=types.SimpleNamespace(
            block_size=min(group["block_size"] for group in cfg["groups"]),
            prefix_match_unit=cfg.get("prefix_match_unit"), enable_prefix_caching=cfg["prefix_caching"]))


class KVCache:
    """One trace of family `kvm`; `requests` (id -> Request) are those not yet forgotten, `popped` (id -> blocks) what
    pop_free took, `hits` (id -> (blocks, tokens)) the last lookups."""

    def __init__(self, cfg):
        self.cfg = cfg
        set_hashing(cfg)
        groups = cache_config(cfg)
        self.block_size, self.hash_block_size = kv_cache_utils.resolve_kv_cache_block_sizes(groups,
                                                                                            hashing_settings(cfg))
        self.hasher = None
        if cfg["prefix_caching"]:
            self.hasher = kv_cache_utils.get_request_block_hasher(self.hash_block_size, sha256_cbor)
        self.manager = KVCacheManager(
            groups, max_model_len=cfg["max_model_len"], scheduler_block_size=self.block_size,
            hash_block_size=self.hash_block_size, max_in_flight_tokens=cfg["max_in_flight_tokens"],
            enable_caching=cfg["prefix_caching"], use_eagle=cfg["use_eagle"],
            num_prefill_lookahead=cfg["num_prefill_lookahead"], enable_kv_cache_events=cfg["kv_events"],
            watermark=cfg["watermark"],
            enable_mamba_shared_prefix_checkpoint=cfg.get("mamba_shared_prefix_checkpoint", False))
        self.requests, self.popped, self.hits = {}, {}, {}
        self.changes = Changes()
        self.rows, self.tables = {}, {}

    @property
    def pool(self):
        return self.manager.block_pool

    @property
    def managers(self):
        return self.manager.coordinator.single_type_managers

    def derived(self):
        coordinator = self.manager.coordinator
        return dict(
            scheduler_block_size=self.block_size, hash_block_size=self.hash_block_size,
            eagle_group_ids=sorted(coordinator.eagle_group_ids), watermark_blocks=self.manager.watermark_blocks,
            partial_hash_hits=bool(getattr(coordinator, "enable_partial_hash_hits", False)),
            needs_zeroing=any(group["kind"] == "mamba" for group in self.cfg["groups"]),
            max_admission_blocks=[manager.max_admission_blocks_per_request for manager in self.managers],
            none_hash=kv_cache_utils.NONE_HASH.hex())

    def apply(self, operation):
        inputs = dict(operation)
        out = getattr(self, "make_" + inputs.pop("op"))(**inputs) or {}
        return out, self.state()

    def hex(self, block_hash):
        return block_hash.hex()[:self.cfg["hash"]["hex_chars"]]

    def make_new(self, req):
        request = self.requests[req["id"]] = make_request(req, self.hasher)
        return dict(hashes=[self.hex(each) for each in request.block_hashes])

    def make_get_computed(self, id):
        blocks, count, boundary = self.manager.get_computed_blocks(self.requests[id])
        self.hits[id] = blocks, count
        return dict(blocks=lists(blocks.get_block_ids()), num=count, boundary=boundary)

    def make_alloc(self, id, num_new, num_new_computed=0, use_hit=False, lookahead=0, ext=0, delay=False,
                   full_fit=False, reserved=0, has_scheduled=True):
        blocks = self.manager.allocate_slots(
            self.requests[id], num_new, num_new_computed, self.hits[id][0] if use_hit else None, lookahead, ext, delay,
            full_sequence_must_fit=full_fit, reserved_blocks=reserved, has_scheduled_reqs=has_scheduled)
        return dict(blocks=None if blocks is None else lists(blocks.get_block_ids()))

    def make_set(self, id, computed=None, in_flight=None, status=None, boundary=None):
        request = self.requests[id]
        if computed is not None:
            request.num_computed_tokens = computed
        if in_flight is not None:
            request.num_in_flight_tokens = in_flight
        if status is not None:
            request.status = RequestStatus[status]
        if boundary is not None:
            request.shared_prefix_boundary = boundary

    def make_append(self, id, toks):
        request = self.requests[id]
        before = len(request.block_hashes)
        request.append_output_token_ids(toks)
        return dict(hashes=[self.hex(each) for each in request.block_hashes[before:]])

    def make_cache(self, id, n):
        self.manager.cache_blocks(self.requests[id], n)

    def make_skip(self, id, n):
        self.manager.remove_skipped_blocks(id, n, self.requests[id].num_prompt_tokens)

    def make_free(self, id, drop=False):
        self.manager.free(self.requests[id])
        if drop:
            del self.requests[id]

    def make_pop_free(self, id):
        self.popped[id] = self.manager.pop_blocks_for_free(self.requests.pop(id))
        return dict(blocks=[block.block_id for block in self.popped[id]])

    def make_free_popped(self, id):
        self.pool.free_blocks(reversed(self.popped.pop(id)))

    def make_evict(self, ids):
        self.manager.evict_blocks(ids)

    def make_reset(self):
        return dict(ok=self.manager.reset_prefix_cache())

    def make_new_step(self):
        self.manager.new_step_starts()

    def make_events(self):
        return dict(events=[event_row(event) for event in self.manager.take_events()])

    def make_take_new_ids(self):
        return dict(ids=self.manager.take_new_block_ids())

    def make_take_copies(self):
        copies, retained = self.manager.take_kv_cache_block_copies()
        self.pool.free_blocks(retained)
        return dict(copies=[[copy.src_block_id, copy.dst_block_id] for copy in copies])

    def make_common(self, id):
        return dict(n=self.manager.get_num_common_prefix_blocks(id))

    def make_estimate(self, id):
        return dict(n=self.manager.estimate_cached_tokens(self.requests[id]))

    def make_clip(self, id, n):
        return dict(blocks=lists(self.manager.get_block_ids_for_computed_tokens(id, n)))

    def state(self):
        queue = free_ids(self.pool)
        state = dict(free=len(queue), fq=queue_digest(queue))
        self.changes.note(state, "fql", queue)
        self.changes.note(state, "cached", len(self.pool.cached_block_hash_to_block))
        self.changes.note(state, "dups", self.duplicates())
        rows = []
        for block in self.pool.blocks[1:]:
            row = self.block_row(block)
            if self.rows.get(block.block_id, [block.block_id, 0, None, None, None]) != row:
                rows.append(row)
                self.rows[block.block_id] = row
        tables = {}
        untracked = [[[] for _ in self.managers], [None] * len(self.managers)]
        for request_id in [*self.tables, *(each for each in self.requests if each not in self.tables)]:
            table = untracked
            if request_id in self.requests:
                table = [lists(self.manager.get_block_ids(request_id)),
                         [manager.num_cached_block.get(request_id) for manager in self.managers]]
            if self.tables.get(request_id, untracked) != table:
                tables[request_id] = self.tables[request_id] = table
        state |= {key: value for key, value in (("blocks", rows), ("bt", tables)) if value}
        return state

    def block_row(self, block):
        key = block.block_hash
        return [block.block_id, block.ref_cnt, *((None, None, None) if key is None else (
            self.hex(kv_cache_utils.get_block_hash(key)), kv_cache_utils.get_group_id(key),
            block.block_hash_num_tokens))]

    def duplicates(self):
        return sorted([self.hex(kv_cache_utils.get_block_hash(key)), kv_cache_utils.get_group_id(key), list(blocks)]
                      for key, blocks in self.pool.cached_block_hash_to_block._cache.items()
                      if isinstance(blocks, dict))
