"""Random configurations and operations for the scheduler, one function per family.

A family gives the configuration of a trace and the Habits of those who use the engine: which operations they make, how
often, and what their requests look like. Workload makes the operations one by one, each from what the engine answered
before, as clients, a worker, a grammar compiler and a KV transfer would.
"""
import dataclasses
import math

BLOCK_SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32)
FINE_BLOCK_SIZES = (1, 2, 3, 4, 6, 8, 16)
BUDGETS = (5, 8, 13, 16, 24, 32, 50, 64, 100, 128, 256)
LIMITS = (48, 64, 100, 128, 200, 256, 300)
WINDOWS = (1, 2, 3, 5, 7, 8, 11, 16, 20, 32, 33, 50, 100)
EAGLE_METHODS = ("eagle", "eagle3", "mtp", "dflash")
METHODS = ("ngram", "draft_model", *EAGLE_METHODS)
VOCABULARY = 100
PLACEHOLDER = 1
NUM_STEPS = (20, 40, 80)


@dataclasses.dataclass
class Habits:
    """Probabilities are per step unless said otherwise; those of a request's properties are per request."""
    max_requests: int = 40
    arrivals: float = 0.4
    shared: float = 0.5  # prompts that begin like an earlier one
    lengths: tuple = (1, 90)
    outputs: tuple = (1, 20)
    aborts: float = 0.02
    abort_all: float = 0.0
    resets: float = 0.0
    pauses: float = 0.0
    throttles: float = 0.0
    encoder_resets: float = 0.0
    adapters: float = 0.0
    salts: float = 0.0
    skips: float = 0.0
    stops: float = 0.2
    rules: float = 0.0  # min_tokens, repetition
    clients: int = 1
    priorities: float = 0.0
    images: float = 0.0
    resized: float = 0.0  # images whose identifier came with another size
    structured: float = 0.0
    violations: float = 0.0  # of tokens of a structured request
    sessions: float = 0.0
    session_ids: float = 0.0
    reports: float = 0.0
    loads: float = 0.0
    failures: float = 0.0  # of a load
    pending_frees: float = 0.0


def cdiv(count, size):
    return -(-count // size)


def base(chance, groups=None, **fields):
    """A configuration of one full-attention group; pool() gives it its blocks."""
    budget = chance.choice(BUDGETS)
    cfg = dict(groups=groups or [dict(kind="full", block_size=chance.choice(BLOCK_SIZES))], num_blocks=0,
               max_model_len=chance.choice(LIMITS), max_num_seqs=min(chance.choice((1, 2, 3, 4, 6, 9, 12)), budget),
               max_num_batched_tokens=budget, prefix_caching=chance.random() < 0.6, retention_interval=0,
               enable_chunked_prefill=True, long_prefill_token_threshold=0, policy="fcfs", reserve_full_isl=True,
               watermark=0.0, async_scheduling=False, pp=1, v2_runner=chance.random() < 0.5,
               include_finished_set=False, log_stats=True,
               hash=dict(algo="sha256_cbor", none_seed="vllm-none-hash", hex_chars=16))
    return cfg | fields


def pool(chance, cfg, share=None):
    """Blocks for so many requests of the longest length; without `share` from hardly one to many."""
    one = sum(cdiv(cfg["max_model_len"], group["block_size"]) + 1 for group in cfg["groups"])
    if share is None:
        share = chance.choice((1, 1.5, 2, 4, 8))
    cfg["num_blocks"] = min(max(int(one * share), 4) + chance.choice((0, 1, 2, 5)), 1200)
    return cfg


def tight_pool(chance, cfg):
    return pool(chance, cfg, chance.choice((0.3, 0.5, 0.7, 0.9, 1, 1, 1.2, 1.5, 2)))


def retention(chance, cfg):
    """A retention interval that the groups allow."""
    size = math.lcm(*(group["block_size"] for group in cfg["groups"]))
    cfg["retention_interval"] = chance.choice((0, 0, None, size, 2 * size, 3 * size, 4 * size))
    return cfg


def sliding(chance, size, **fields):
    return dict(kind="sliding_window", block_size=size, sliding_window=chance.choice(WINDOWS)) | fields


def sizes(chance):
    """Block sizes of full and of other groups: equal, or one a multiple of the other, or unrelated."""
    size = chance.choice(FINE_BLOCK_SIZES)
    other = size if chance.random() < 0.5 else size * chance.choice((2, 3, 4)) if chance.random() < 0.8 else (
        chance.choice(FINE_BLOCK_SIZES))
    return (size, other) if chance.random() < 0.5 else (other, size)


def hybrid_groups(chance, kind="sliding_window"):
    size, other = sizes(chance)
    if kind == "chunked_local":
        other = size
    groups = [dict(kind="full", block_size=size)]
    first = None
    for _ in range(chance.choice((1, 1, 2, 2, 3, 5))):
        if kind == "chunked_local":
            group = dict(kind=kind, block_size=other, attention_chunk_size=other * chance.choice((1, 2, 3, 4, 8)))
        else:
            group = sliding(chance, other)
        first = first or group
        groups.append(dict(first) if chance.random() < 0.7 else group)
    if chance.random() < 0.3:
        chance.shuffle(groups)
    return groups


def speculation(chance, methods=METHODS):
    spec = dict(method=chance.choice(methods), k=chance.choice((1, 1, 2, 3, 4, 5, 7)))
    if spec["method"] == "mtp" and chance.random() < 0.6:
        spec["mtp_layers"] = chance.choice((1, 2, 3, 5))
    if spec["method"] in ("draft_model", "eagle3") and chance.random() < 0.4:
        spec["parallel_drafting"] = True
    if spec["method"] in EAGLE_METHODS and chance.random() < 0.25:
        spec["disable_eagle_block_drop"] = True
    if chance.random() < 0.2:
        middle = chance.choice((1, 2, 3))
        spec["dynamic"] = [[1, middle, spec["k"]], [middle + 1, 100, chance.randint(0, spec["k"])]]
    return spec


def eagle_groups(chance, cfg):
    """Marks groups that hold drafter layers, for some configurations."""
    spec = cfg.get("spec", {})
    drops_block = spec.get("method") in EAGLE_METHODS and not spec.get("disable_eagle_block_drop")
    if drops_block and len(cfg["groups"]) > 1 and chance.random() < 0.5:
        for group in cfg["groups"]:
            if chance.random() < 0.4:
                group["eagle"] = True
    return cfg


def retained(cfg):
    """Sliding windows keep what multi-layer MTP computes again."""
    spec = cfg.get("spec") or {}
    layers = min(spec.get("mtp_layers", 1), spec.get("k", 0)) if spec.get("method") == "mtp" else 0
    if layers > 1:
        for group in cfg["groups"]:
            if group["kind"] == "sliding_window":
                group["extra_retained_tokens"] = spec["k"] - 1
    return cfg


def basic(chance):
    return pool(chance, base(chance)), Habits(aborts=0)


def tight(chance):
    cfg = base(chance, reserve_full_isl=chance.random() < 0.5, watermark=chance.choice((0.0, 0.0, 0.03, 0.05, 0.2)))
    return tight_pool(chance, cfg), Habits(arrivals=0.7, outputs=(1, 40))


def priority(chance):
    cfg = base(chance, policy="priority", reserve_full_isl=chance.random() < 0.4,
               watermark=chance.choice((0.0, 0.0, 0.05)))
    habits = Habits(arrivals=0.7, priorities=1.0, outputs=(1, 40), aborts=0.04)
    if chance.random() < 0.5:
        cfg["spec"] = speculation(chance)
    if chance.random() < 0.4:
        images(chance, cfg, habits)
    return tight_pool(chance, cfg), habits


def prefix(chance):
    cfg = base(chance, prefix_caching=True)
    cfg["hash"] = dict(cfg["hash"], hex_chars=64, none_seed=chance.choice(("vllm-none-hash", "42", "0", "")))
    habits = Habits(shared=0.85, salts=0.2, skips=0.1, aborts=0.03)
    if chance.random() < 0.6:
        cfg["lora"] = dict(max_loras=chance.choice((1, 2, 3)))
        habits.adapters = 0.4
    return (pool if chance.random() < 0.6 else tight_pool)(chance, cfg), habits


def chunked(chance):
    cfg = base(chance)
    cfg["long_prefill_token_threshold"] = chance.choice((0, 1, 3, 5, 8, 17, 33, 60))
    if cfg["long_prefill_token_threshold"]:
        cfg["long_prefill_adaptive"] = chance.random() < 0.4
    if chance.random() < 0.3:
        cfg |= dict(enable_chunked_prefill=False, max_num_batched_tokens=max(cfg["max_model_len"], 200))
    if chance.random() < 0.5:
        cfg["max_num_active_seqs"] = chance.randint(1, cfg["max_num_seqs"])
    if chance.random() < 0.5:
        cfg["max_num_scheduled_tokens"] = max(1, cfg["max_num_batched_tokens"] // chance.choice((1, 2, 3, 5)))
    return (pool if chance.random() < 0.6 else tight_pool)(chance, cfg), Habits()


def swa(chance):
    size = chance.choice(BLOCK_SIZES)
    return (pool if chance.random() < 0.5 else tight_pool)(chance, retention(chance, base(
        chance, [sliding(chance, size)], prefix_caching=chance.random() < 0.85,
        async_scheduling=chance.random() < 0.2))), Habits(shared=0.7, lengths=(1, 150))


def hybrid(chance):
    cfg = base(chance, hybrid_groups(chance), prefix_caching=chance.random() < 0.9,
               reserve_full_isl=chance.random() < 0.7, async_scheduling=chance.random() < 0.2)
    return (pool if chance.random() < 0.5 else tight_pool)(chance, retention(chance, cfg)), Habits(
        shared=0.7, lengths=(1, 150))


def chunked_local(chance):
    size = chance.choice(FINE_BLOCK_SIZES)
    groups = hybrid_groups(chance, "chunked_local")
    if chance.random() < 0.3:
        groups = [dict(kind="chunked_local", block_size=size, attention_chunk_size=chance.choice(WINDOWS))]
    cfg = base(chance, groups, prefix_caching=chance.random() < 0.7, async_scheduling=chance.random() < 0.2)
    return (pool if chance.random() < 0.6 else tight_pool)(chance, cfg), Habits(shared=0.7, lengths=(1, 150))


def mamba_groups(chance, group, size, count):
    """So many of a Mamba group, some with checkpoint blocks, alone or with attention of about `size`."""
    if group["mode"] == "align" and chance.random() < 0.4:
        group |= dict(num_prefill_checkpoint_blocks=1)
        group["prefill_checkpoint_alignment"] = chance.choice((1, 2, 4, size, size // 2 or 1))
    groups = [dict(group) for _ in range(count)]
    if chance.random() < 0.9:
        other = size
        if chance.random() < 0.25 and group["mode"] == "align":
            other = chance.choice([each for each in (1, 2, 4, 8, 16) if size % each == 0 or each % size == 0])
        groups.insert(0, dict(kind="full", block_size=other))
        if chance.random() < 0.15:
            groups.insert(1, sliding(chance, other))
        if chance.random() < 0.2:
            chance.shuffle(groups)
    return groups


def mamba(chance):
    size = chance.choice((4, 6, 8, 12, 16, 32))
    count = chance.choice((1, 1, 2, 3))
    cfg = base(chance, [], async_scheduling=chance.random() < 0.25)
    if chance.random() < 0.15:
        group = dict(kind="mamba", mode="none", block_size=cfg["max_model_len"])
        cfg["prefix_caching"] = False
    else:
        group = dict(kind="mamba", mode="align", block_size=size)
        cfg["prefix_caching"] = chance.random() < 0.9
    if chance.random() < 0.45:
        cfg["spec"] = speculation(chance, ("ngram", "eagle", "eagle3", "mtp", "draft_model"))
        cfg["spec"].pop("dynamic", None)
        group["num_speculative_blocks"] = cfg["spec"]["k"]
    cfg["groups"] = mamba_groups(chance, group, size, count)
    if group["mode"] == "align" and cfg["prefix_caching"]:
        retention(chance, cfg)
        if len(cfg["groups"]) > 1 and chance.random() < 0.6:
            units = [unit for unit in (1, 2, 3, 4, 8) if all(each["block_size"] % unit == 0 for each in cfg["groups"])]
            cfg["prefix_match_unit"] = chance.choice(units)
        if chance.random() < 0.4:
            cfg["mamba_shared_prefix_checkpoint"] = True
    eagle_groups(chance, cfg)
    return (pool if chance.random() < 0.5 else tight_pool)(chance, retained(cfg)), Habits(shared=0.8, lengths=(1, 150))


def spec(chance):
    cfg = base(chance, hybrid_groups(chance) if chance.random() < 0.3 else None)
    cfg["spec"] = speculation(chance)
    if chance.random() < 0.2:
        cfg["long_prefill_token_threshold"] = chance.choice((3, 8, 20))
    if len(cfg["groups"]) > 1:
        retention(chance, cfg)
    eagle_groups(chance, cfg)
    return (pool if chance.random() < 0.5 else tight_pool)(chance, retained(cfg)), Habits(outputs=(1, 40))


def images(chance, cfg, habits):
    cfg["mm"] = dict(compute_budget=chance.choice((10, 16, 24, 32, 48, 64)), cache_size=chance.choice((16, 32, 64, 100)))
    cfg["disable_chunked_mm_input"] = chance.random() < 0.3 and cfg["max_num_batched_tokens"] >= 32
    habits.images = 0.7


def mm(chance):
    cfg, habits = base(chance, async_scheduling=chance.random() < 0.25), Habits(aborts=0.03, encoder_resets=0.01)
    images(chance, cfg, habits)
    habits.resized = chance.choice((0, 0, 0.05))
    if chance.random() < 0.5:
        cfg["spec"] = speculation(chance)
    return (pool if chance.random() < 0.6 else tight_pool)(chance, cfg), habits


def stops(chance):
    cfg = base(chance, include_finished_set=chance.random() < 0.5, async_scheduling=chance.random() < 0.2)
    if chance.random() < 0.3:
        cfg["spec"] = speculation(chance)
    return pool(chance, cfg), Habits(stops=0.8, rules=0.5, aborts=0.1, abort_all=0.02, clients=chance.choice((1, 2, 3)),
                                     outputs=(1, 60))


def ahead(chance):
    cfg = base(chance, hybrid_groups(chance) if chance.random() < 0.4 else None, async_scheduling=True,
               reserve_full_isl=chance.random() < 0.7)
    if chance.random() < 0.5:
        cfg["spec"] = speculation(chance)
        eagle_groups(chance, cfg)
    if len(cfg["groups"]) > 1:
        retention(chance, cfg)
    return (pool if chance.random() < 0.4 else tight_pool)(chance, retained(cfg)), Habits(aborts=0.06, outputs=(1, 40))


def pp(chance):
    cfg = base(chance, hybrid_groups(chance) if chance.random() < 0.3 else None, pp=chance.choice((2, 2, 3, 4)),
               async_scheduling=chance.random() < 0.6, reserve_full_isl=chance.random() < 0.7)
    if chance.random() < 0.2:
        cfg["spec"] = speculation(chance)
    if len(cfg["groups"]) > 1:
        retention(chance, cfg)
    return (pool if chance.random() < 0.4 else tight_pool)(chance, retained(cfg)), Habits(aborts=0.06, outputs=(1, 40))


def events(chance):
    cfg = base(chance, hybrid_groups(chance) if chance.random() < 0.4 else None, prefix_caching=True, kv_events=True,
               async_scheduling=chance.random() < 0.2)
    cfg["hash"] = dict(cfg["hash"], hex_chars=64)
    habits = Habits(shared=0.7, salts=0.2, session_ids=0.3, reports=0.3, resets=0.02)
    if chance.random() < 0.4:
        cfg["event_hashes"] = "bytes"
    if chance.random() < 0.5:
        cfg["lora"], habits.adapters = dict(max_loras=chance.choice((1, 2, 3))), 0.3
    if chance.random() < 0.4:
        images(chance, cfg, habits)
    if len(cfg["groups"]) > 1:
        retention(chance, cfg)
    if chance.random() < 0.3:
        cfg["spec"] = speculation(chance)
        eagle_groups(chance, cfg)
    return (pool if chance.random() < 0.4 else tight_pool)(chance, retained(cfg)), habits


def structured(chance):
    cfg = base(chance, async_scheduling=chance.random() < 0.5)
    if chance.random() < 0.5:
        cfg["spec"] = speculation(chance)
    return (pool if chance.random() < 0.6 else tight_pool)(chance, cfg), Habits(
        structured=0.6, violations=chance.choice((0, 0.02)), aborts=0.03)


def reset(chance):
    cfg = base(chance, hybrid_groups(chance) if chance.random() < 0.3 else None, prefix_caching=True,
               async_scheduling=chance.random() < 0.5)
    habits = Habits(resets=0.1, pauses=0.1, encoder_resets=0.02, aborts=0.03)
    if chance.random() < 0.3:
        cfg["spec"] = speculation(chance)
    if chance.random() < 0.3:
        images(chance, cfg, habits)
    if len(cfg["groups"]) > 1:
        retention(chance, cfg)
    return pool(chance, retained(cfg)), habits


def throttle(chance):
    cfg = base(chance, async_scheduling=chance.random() < 0.3)
    return (pool if chance.random() < 0.6 else tight_pool)(chance, cfg), Habits(throttles=0.5, arrivals=0.6)


def sessions(chance):
    # Without drafts: vLLM counts those accepted beyond a session's stop as computed tokens of its next chunk.
    cfg = base(chance, async_scheduling=chance.random() < 0.5)
    return (pool if chance.random() < 0.6 else tight_pool)(chance, cfg), Habits(
        sessions=0.7, aborts=0.04, lengths=(1, 30), outputs=(1, 8))


def pooling(chance):
    cfg = base(chance, runner="pooling")
    return (pool if chance.random() < 0.6 else tight_pool)(chance, cfg), Habits(arrivals=0.7, skips=0.1)


def connector(chance):
    cfg = base(chance, hybrid_groups(chance) if chance.random() < 0.35 else None, prefix_caching=chance.random() < 0.8,
               async_scheduling=chance.random() < 0.35, reserve_full_isl=chance.random() < 0.8)
    cfg["connector"] = dict(role=chance.choice(("kv_producer", "kv_consumer", "kv_both")),
                            failure_policy=chance.choice(("recompute", "fail")))
    if len(cfg["groups"]) > 1:
        retention(chance, cfg)
    if chance.random() < 0.3:
        cfg["spec"] = speculation(chance)
        eagle_groups(chance, cfg)
    if chance.random() < 0.2:
        cfg["policy"] = "priority"
    if chance.random() < 0.15:
        cfg["pp"] = 2
    habits = Habits(loads=0.7, failures=chance.choice((0, 0.1, 0.3)), aborts=0.05, resets=0.02,
                    pending_frees=chance.choice((0, 0.02)), arrivals=0.6)
    return (pool if chance.random() < 0.5 else tight_pool)(chance, retained(cfg)), habits


def mixed(chance):
    cfg = base(chance, hybrid_groups(chance) if chance.random() < 0.6 else None, prefix_caching=chance.random() < 0.9,
               async_scheduling=chance.random() < 0.5, reserve_full_isl=chance.random() < 0.5,
               watermark=chance.choice((0, 0, 0.03, 0.1)), policy=chance.choice(("fcfs", "priority")),
               pp=chance.choice((1, 1, 1, 1, 2)), kv_events=chance.random() < 0.4,
               include_finished_set=chance.random() < 0.2)
    habits = Habits(shared=0.6, salts=0.1, skips=0.05, rules=0.1, clients=chance.choice((1, 2)), aborts=0.05,
                    resets=0.02, structured=chance.choice((0, 0.1)), pauses=chance.choice((0, 0.02)),
                    throttles=chance.choice((0, 0, 0.2)), outputs=(1, 40), sessions=chance.choice((0, 0, 0.2)),
                    priorities=1.0 if cfg["policy"] == "priority" else 0, reports=0.1 if cfg["kv_events"] else 0)
    if len(cfg["groups"]) > 1:
        retention(chance, cfg)
    if chance.random() < 0.6:
        cfg["spec"] = speculation(chance)
        eagle_groups(chance, cfg)
        habits.sessions = 0  # see sessions()
    if chance.random() < 0.4:
        cfg["lora"], habits.adapters = dict(max_loras=chance.choice((1, 2))), 0.3
    if chance.random() < 0.4:
        images(chance, cfg, habits)
    if chance.random() < 0.3:
        cfg["long_prefill_token_threshold"] = chance.choice((3, 8, 12, 40))
        cfg["long_prefill_adaptive"] = chance.random() < 0.3
    return (pool if chance.random() < 0.3 else tight_pool)(chance, retained(cfg)), habits


FAMILIES = {"basic": basic, "tight": tight, "priority": priority, "prefix": prefix, "chunked": chunked, "swa": swa,
            "hybrid": hybrid, "chunked_local": chunked_local, "mamba": mamba, "spec": spec, "mm": mm, "stops": stops,
            "async": ahead, "pp": pp, "events": events, "structured": structured, "reset": reset, "throttle": throttle,
            "sessions": sessions, "pooling": pooling, "mixed": mixed, "connector": connector}


@dataclasses.dataclass
class Step:
    """A step between its sched and its update."""
    k: int
    rows: list  # (id, whether a token is sampled, drafts to verify)
    out: dict
    needs_bitmask: bool


class Workload:
    """Makes the operations of one trace. apply(operation) gives the engine's answer."""

    def __init__(self, chance, engine, cfg, habits, apply):
        self.chance, self.engine, self.cfg, self.habits, self.apply = chance, engine, cfg, habits, apply
        self.requests = {}  # id -> req, of all that were ever added
        self.prompts = []
        self.grammars = {}  # id -> its compilation's result and the remainder's modulus, until it has ended
        self.images = {}
        self.loading, self.sending = {}, set()
        self.num_added, self.clock = 0, 0.0
        self.open = []
        self.next_k = 0
        self.throttled = chance.random() < habits.throttles

    def often(self, probability):
        return self.chance.random() < probability

    def alive(self):
        return self.engine.scheduler.requests

    def run(self):
        for _ in range(self.chance.choice(NUM_STEPS)):
            self.arrive()
            self.interfere()
            self.advance()
        self.finish()

    def finish(self):
        """Ends what is under way, as far as a few steps can."""
        if self.habits.pauses:
            self.apply(dict(op="pause", state=0))
        for _ in range(30):
            if not self.open and not self.engine.scheduler.has_requests():
                break
            self.advance()

    # Clients.

    def arrive(self):
        while self.num_added < self.habits.max_requests and self.often(self.habits.arrivals):
            self.clock += self.chance.choice((0, 0.25, 0.5, 1.0))
            self.add(self.draw_request())
            if self.often(0.3):
                break

    def add(self, req):
        self.num_added += 1
        self.requests[req["id"]] = req
        self.apply(dict(op="add", req=req))

    def draw_prompt(self):
        limit = self.cfg["max_model_len"] - (0 if self.cfg.get("runner") == "pooling" else 1)
        low, high = self.habits.lengths
        length = min(self.chance.randint(low, high), limit)
        if self.often(0.25):
            size = self.chance.choice(self.cfg["groups"])["block_size"]
            length = size * self.chance.randint(1, max(1, high // size)) + self.chance.choice((-1, 0, 0, 1))
        if self.often(0.05):
            length = self.chance.choice((1, limit, limit - 1))
        length = max(1, min(length, limit))
        start = []
        if self.prompts and self.often(self.habits.shared):
            known = self.chance.choice(self.prompts[-8:])
            alive = [each for each in self.alive().values() if not each.is_finished()]
            if alive and self.often(0.3):
                known = list(self.chance.choice(alive).all_token_ids)
            if self.often(0.2):
                return known[:limit]
            start = known[:self.chance.randint(0, len(known))]
        rest = [self.chance.randint(3, VOCABULARY) for _ in range(max(length - len(start), 1))]
        return (start + rest)[:limit]

    def draw_request(self):
        habits, chance = self.habits, self.chance
        if habits.sessions and self.often(habits.sessions * 0.6):
            known = [each for each in self.alive().values() if each.resumable and not each.is_finished()]
            if known:
                return self.draw_chunk(chance.choice(known))
        req = dict(id=f"r{len(self.requests)}", prompt=self.draw_prompt(), max_tokens=chance.randint(*habits.outputs),
                   arrival=self.clock)
        if self.often(0.1):
            req["max_tokens"] = chance.choice((1, 2))
        if self.often(habits.images) and "mm" in self.cfg:
            self.add_images(req)
        self.prompts.append(req["prompt"])
        self.add_stops(req)
        if self.often(habits.adapters):
            number = chance.randint(1, 4)
            req["lora"] = dict(name=f"lora{number}", id=number, path=f"/adapters/{number}")
        if self.often(habits.salts):
            req["salt"] = chance.choice(("a", "b", "salt"))
        if self.often(habits.skips):
            req["skip_reading_prefix_cache"] = True
        if self.often(habits.priorities):
            req["priority"] = chance.choice((0, 0, 1, 2, 5, -1))
        if habits.clients > 1:
            req["client"] = chance.randrange(habits.clients)
        if self.cfg.get("runner") == "pooling":
            return dict(req, pooling=True)
        if self.often(habits.session_ids):
            req["session"] = chance.choice(("s1", "s2"))
        if self.often(habits.reports):
            req["kv_cache_report_mode"] = "full"
        if self.often(habits.loads) and "connector" in self.cfg:
            req["remote"] = self.draw_script(req)
        if self.often(habits.sessions) and "remote" not in req and "mm" not in req:
            req["resumable"] = True
        elif self.often(habits.structured):
            req |= dict(structured=True, mod=chance.choice((2, 3, 5)))
            self.grammars[req["id"]] = req["mod"]
        return req

    def add_stops(self, req):
        chance = self.chance
        if self.often(self.habits.stops):
            req["eos_token_id"] = 2
            if self.often(0.4):
                req["stop_token_ids"] = chance.sample(range(3, VOCABULARY), chance.choice((1, 2)))
        if self.often(self.habits.rules):
            req["min_tokens"] = chance.randint(0, req["max_tokens"])
        if self.often(self.habits.rules):
            largest = chance.randint(1, 4)
            req["repetition"] = [largest, chance.randint(1, largest), chance.choice((2, 3))]

    def draw_chunk(self, session):
        """The next chunk, or the end: a session must not become longer than the longest request."""
        waiting = [chunk for chunk in session.streaming_queue if chunk is not None]
        longest = session.num_tokens + session.max_tokens + sum(len(chunk.prompt_token_ids) + chunk.max_tokens
                                                                for chunk in waiting)
        prompt = [self.chance.randint(3, VOCABULARY) for _ in range(self.chance.randint(1, 20))]
        req = dict(id=session.request_id, prompt=prompt, max_tokens=self.chance.randint(*self.habits.outputs),
                   arrival=self.clock)
        fits = longest + len(prompt) + req["max_tokens"] < self.cfg["max_model_len"]
        req["resumable"] = fits and self.often(0.8)
        self.add_stops(req)
        return req

    def add_images(self, req):
        chance, items, prompt = self.chance, [], req["prompt"]
        offset, limit = 0, self.cfg["max_model_len"] - 1
        largest = min(self.cfg["mm"]["compute_budget"], self.cfg["mm"]["cache_size"], 40)
        for _ in range(chance.choice((1, 1, 2, 3, 4))):
            name = f"img{chance.randint(0, 7):02}"
            if name not in self.images or self.often(self.habits.resized):
                length = chance.randint(1, largest)
                mask = None
                if self.often(0.3):
                    mask = "".join(chance.choice("0111") for _ in range(length))
                    mask = mask if "1" in mask else None
                self.images[name] = (length, mask)
            length, mask = self.images[name]
            offset = chance.randint(offset, max(offset, min(len(prompt), offset + 30)))
            if len(prompt) + length > limit:
                break
            prompt[offset:offset] = [PLACEHOLDER] * length
            item = dict(hash=name, offset=offset, length=length)
            if mask is not None:
                item["mask"] = mask
            items.append(item)
            offset += length
        if items:
            req["mm"] = items

    def draw_script(self, req):
        chance, length = self.chance, len(req["prompt"])
        is_async = self.often(0.5)
        size = math.lcm(*(group["block_size"] for group in self.cfg["groups"]))
        tokens = chance.choice((0, (length - 1) // size * size, size * chance.randint(0, max((length - 1) // size, 0))))
        if self.often(0.2):
            tokens = length if is_async else length - 1
        script = {"tokens": tokens, "async": is_async}
        if self.often(0.15):
            script["defer"] = chance.randint(1, 3)
        if self.often(0.3):
            script["delay"] = True
        if self.often(0.3):
            script["params"] = {"do_remote_prefill": self.often(0.5), "from": req["id"]}
        return script

    def interfere(self):
        """What may happen between two steps, or between a step and its update."""
        habits, chance = self.habits, self.chance
        if self.often(habits.aborts):
            known = [each.request_id for each in self.alive().values() if not each.is_finished()]
            if known:
                self.abort(chance.choice(known))
        if self.often(habits.abort_all):
            self.abort(None)
        if self.often(habits.resets):
            self.apply(dict(op="reset_prefix_cache", running=self.often(0.5), connector=self.often(0.3)))
        if self.often(habits.encoder_resets) and not any(each.has_encoder_inputs for each in self.alive().values()):
            self.apply(dict(op="reset_encoder_cache"))
        if self.often(habits.pauses):
            self.apply(dict(op="pause", state=chance.choice((0, 0, 1, 2))))
        if self.often(habits.pending_frees) or self.engine.connector and self.engine.connector.pending_frees and (
                self.often(0.3)):
            self.apply(dict(op="conn", pending_frees=not self.engine.connector.pending_frees))
        for request_id in [*self.grammars]:
            if request_id not in self.alive():
                del self.grammars[request_id]
            elif self.often(0.4):
                self.apply(dict(op="grammar", id=request_id, ok=self.often(0.95), mod=self.grammars.pop(request_id)))

    def abort(self, request_id):
        self.apply(dict(op="finish", id=request_id, status="FINISHED_ABORTED"))

    # The engine's loop.

    def advance(self):
        """With one batch at a time a step and its update; with several, a new step and, if all are open, the oldest's
        update."""
        limit = self.engine.settings.max_concurrent_batches
        has = self.engine.scheduler.has_requests()
        if has and len(self.open) < limit:
            self.schedule()
            if self.often(0.1):
                self.interfere()
        if self.open and (len(self.open) == limit or not self.engine.scheduler.has_requests() or self.often(0.15)):
            self.update()

    def schedule(self):
        operation = dict(op="sched", k=self.next_k)
        self.next_k += 1
        if self.habits.throttles:
            if self.often(0.2):
                self.throttled = not self.throttled
            operation["throttle"] = self.throttled
        out = self.apply(operation)
        rows = []
        for request_id, _ in out["num"]:
            request = self.alive()[request_id]
            drafts = out.get("spec", {}).get(request_id, [])
            rows.append((request_id, not request.is_prefill_chunk, drafts))
        self.note_transfers(out)
        self.note_loads(operation["k"])
        is_deferred = out.get("pending_structured", False)
        step = Step(operation["k"], rows, out, bool(self.habits.structured))
        self.open.append(step)
        if step.needs_bitmask and not (is_deferred and len(self.open) > 1):
            self.mask(step)

    def mask(self, step):
        self.apply(dict(op="bitmask", k=step.k))
        step.needs_bitmask = False

    def update(self):
        step = self.open.pop(0)
        if step.needs_bitmask:
            self.mask(step)
        operation = dict(op="update", k=step.k, toks=[[row[0], self.sample(*row)] for row in step.rows])
        if self.cfg.get("runner") == "pooling":
            operation |= dict(toks=[[row[0], []] for row in step.rows], pooled=[row[0] for row in step.rows if row[1]])
        report = self.report(step)
        if report:
            operation["kv"] = report
        out = self.apply(operation)
        self.note_transfers(out)
        if self.cfg.get("spec") and not self.cfg["async_scheduling"]:
            count = step.out["next_k"]
            rows = [row for row in step.rows if row[1] or self.cfg["pp"] == 1]
            self.apply(dict(op="drafts", d=[[row[0], self.draft(row[0], count)] for row in rows]))
        for later in self.open:
            if later.needs_bitmask:
                if self.cfg.get("spec") and any(row[2] for row in later.rows):
                    self.draft_in_output(later)
                self.mask(later)
                break

    def draft_in_output(self, step):
        drafts = [[row[0], self.draft(row[0], len(row[2]))] for row in step.rows if row[2]]
        spec = self.apply(dict(op="drafts_in_output", k=step.k, d=drafts))["spec"]
        step.rows = [(request_id, samples, spec.get(request_id, [])) for request_id, samples, _ in step.rows]

    def sample(self, request_id, samples, drafts):
        if not samples:
            return []
        request = self.alive().get(request_id)
        most = len(drafts)
        if not self.cfg["async_scheduling"] or request is not None and request.use_structured_output:
            most = next((i for i, draft in enumerate(drafts) if draft == -1), most)
        count = 1 + (self.chance.randint(0, most) if self.often(0.7) else most)
        return self.tokens(request, count)

    def tokens(self, request, count):
        chance = self.chance
        tokens = [2 if self.often(0.03) else chance.randint(3, VOCABULARY) for _ in range(count)]
        if self.habits.rules and self.often(0.6):
            tokens = [chance.choice((5, 6)) for _ in range(count)]
        if request is None or not request.use_structured_output:
            return tokens
        grammar = request.structured_output_request.grammar
        modulus = getattr(grammar, "modulus", 1)
        accepted = getattr(grammar, "num_accepted", 0)
        return [chance.randint(3, VOCABULARY) if self.often(self.habits.violations)
                else modulus * chance.randint(1, 9) + (accepted + i) % modulus for i in range(count)]

    def draft(self, request_id, count):
        if self.cfg["spec"]["method"] == "ngram" and self.often(0.5):
            count = self.chance.randint(0, count)
        tokens = self.tokens(self.alive().get(request_id), count)
        return [self.chance.randint(3, VOCABULARY) if self.habits.structured and self.often(0.2) else token
                for token in tokens]

    # KV transfers.

    def note_transfers(self, out):
        for call in out.get("conn", ()):
            if call["fn"] == "finished" and call["ret"][0]:
                self.sending.add(call["id"])

    def note_loads(self, k):
        for request in self.alive().values():
            if request.status.name == "WAITING_FOR_REMOTE_KVS" and (
                    request.request_id not in self.engine.scheduler.finished_recving_kv_req_ids):
                self.loading.setdefault(request.request_id, k)

    def report(self, step):
        """What the connector's workers say with this step: at most one failure, as several would be a set."""
        if "connector" not in self.cfg:
            return {}
        report = {}
        done = [request_id for request_id, start in self.loading.items() if start <= step.k and self.often(0.35)]
        for request_id in done:
            request = self.alive().get(request_id)
            if request is not None:
                report.setdefault("recved", []).append(request_id)
                if self.often(self.habits.failures) and not {"failed", "invalid"} & set(report):
                    self.fail(report, request)
            del self.loading[request_id]
        if not {"failed", "invalid"} & set(report) and self.often(self.habits.failures * 0.3):
            self.fail_step(report, step)
        sent = [request_id for request_id in sorted(self.sending) if self.often(0.3)
                and request_id not in self.loading and request_id in self.alive()
                and request_id not in report.get("recved", ())]
        if sent:
            report["sent"] = sent
            self.sending -= set(sent)
        return report

    def fail(self, report, request):
        if len(self.cfg["groups"]) > 1 or self.often(0.4):
            report["failed"] = [request.request_id]
        else:
            self.spoil(report, request.request_id)

    def fail_step(self, report, step):
        """A block that a request of this step loaded within it."""
        loaded = [call["id"] for call in step.out.get("conn", ()) if call["fn"] == "alloc" and call["ext"]]
        loaded = [request_id for request_id in loaded if request_id in self.alive()]
        if loaded and len(self.cfg["groups"]) == 1:
            self.spoil(report, self.chance.choice(loaded))

    def spoil(self, report, request_id):
        blocks = [block for block in self.engine.manager.get_block_ids(request_id)[0] if block]
        if blocks:
            report["invalid"] = [self.chance.choice(blocks)]
