"""Random configurations and direct calls of the encoder-cache manager (`enc`) and the KV-cache manager (`kvm`).

As scheduler_workloads.py. The calls of one request are in a possible order; between them stands anything, also what a
scheduler would not do: lookups of running requests, blocks that lose their hashes, resets with requests in flight.
"""
import math

from scheduler_workloads import (FINE_BLOCK_SIZES, LIMITS, WINDOWS, Habits, hybrid_groups, mamba_groups, pool, retention,
                                 sliding, tight_pool)

VOCABULARY = 60
NUM_CALLS = (30, 80, 200)


def enc(chance):
    return dict(cache_size=chance.choice((1, 5, 10, 16, 20, 32, 64))), Habits(resized=chance.choice((0, 0, 0.1)))


class EncoderCalls:
    """Makes the calls of one trace of `enc`."""

    def __init__(self, chance, engine, cfg, habits, apply):
        self.chance, self.cache, self.requests = chance, engine.manager, engine.requests
        self.size, self.habits, self.apply = cfg["cache_size"], habits, apply
        self.images = {}

    def often(self, probability):
        return self.chance.random() < probability

    def run(self):
        for _ in range(self.chance.choice(NUM_CALLS)):
            if not self.requests or self.often(0.1):
                self.apply(dict(op="new", req=self.draw_request()))
                continue
            request_id = self.chance.choice([*self.requests][-6:])
            count = len(self.requests[request_id].mm_features)
            item = self.chance.randrange(count)
            action = self.chance.choices(("encode", "check", "can", "free_input", "free", "ids", "freed", "reset"),
                                         (30, 8, 4, 12, 8, 4, 6, 0.7))[0]
            if action == "encode":
                for i in range(count) if self.often(0.5) else [item]:
                    self.encode(request_id, i)
            elif action == "can":
                self.can(request_id, item)
            elif action in ("check", "free_input"):
                self.apply(dict(op=action, id=request_id, i=item))
            elif action in ("free", "ids"):
                self.apply(dict(op=action, id=request_id))
            else:
                self.apply(dict(op=action))

    def encode(self, request_id, item):
        """What the scheduler does for an item that a step needs."""
        if self.often(0.9):
            self.apply(dict(op="embeds", id=request_id, i=item))
        if not self.apply(dict(op="check", id=request_id, i=item))["hit"] and (
                self.can(request_id, item) and self.often(0.9)):
            self.apply(dict(op="allocate", id=request_id, i=item))

    def can(self, request_id, item):
        planned = self.chance.choice((0, 0, 0, self.chance.randint(0, self.size)))
        budget = self.chance.choice((12, 25, 100, self.chance.randint(0, 30)))
        return self.apply(dict(op="can", id=request_id, i=item, budget=budget, sched=planned))["ok"]

    def draw_request(self):
        items, offset = [], self.chance.choice((0, 0, 3))
        for _ in range(self.chance.choice((1, 1, 2, 3, 4, 5))):
            name = f"m{self.chance.randint(0, 8)}"
            if name not in self.images or self.often(self.habits.resized):
                length = self.chance.randint(1, min(20, self.size + 4))
                mask = "".join(self.chance.choice("0111") for _ in range(length)) if self.often(0.4) else None
                self.images[name] = (length, mask)
            length, mask = self.images[name]
            items.append(dict(hash=name, offset=offset, length=length))
            if mask is not None:
                items[-1]["mask"] = mask
            offset += length + self.chance.choice((0, 0, 1, 3))
        return dict(id=f"e{len(self.requests)}", prompt=[1] * (offset + 1), max_tokens=4,
                    arrival=float(len(self.requests)), mm=items)


def states(chance, cfg):
    """Mamba groups, alone or with attention, as the engine makes them."""
    size = chance.choice((2, 4, 6, 8, 12, 16, 32))
    group = dict(kind="mamba", mode="align", block_size=size)
    if chance.random() < 0.15:
        group = dict(kind="mamba", mode="none", block_size=cfg["max_model_len"])
        cfg["prefix_caching"] = False
    if chance.random() < 0.4:
        group["num_speculative_blocks"] = chance.choice((1, 2, 3, 5))
    return mamba_groups(chance, group, size, chance.choice((1, 1, 2, 3)))


def kvm(chance):
    cfg = dict(groups=[], num_blocks=0, max_model_len=chance.choice(LIMITS),
               max_in_flight_tokens=chance.choice((8, 32, 64, 100, 256)), prefix_caching=chance.random() < 0.9,
               use_eagle=chance.random() < 0.35, num_prefill_lookahead=0, watermark=chance.choice((0.0, 0.0, 0.05, 0.2)),
               kv_events=chance.random() < 0.5, retention_interval=0,
               hash=dict(algo="sha256_cbor", none_seed="vllm-none-hash", hex_chars=16))
    kind = chance.choice(("full", "sliding", "sliding", "hybrid", "hybrid", "chunked", "mamba", "mamba", "mamba"))
    size = chance.choice(FINE_BLOCK_SIZES)
    if kind == "mamba":
        cfg["groups"] = states(chance, cfg)
    elif kind == "hybrid":
        cfg["groups"] = hybrid_groups(chance)
    elif kind == "chunked":
        cfg["groups"] = hybrid_groups(chance, "chunked_local") if chance.random() < 0.6 else [
            dict(kind="chunked_local", block_size=size, attention_chunk_size=chance.choice(WINDOWS))]
        cfg["use_eagle"] = False
    else:
        cfg["groups"] = [dict(kind="full", block_size=size) if kind == "full" else sliding(chance, size)]
    if kind not in ("full", "chunked"):
        retention(chance, cfg)
    if cfg["use_eagle"]:
        cfg["num_prefill_lookahead"] = chance.choice((0, 1, 1, 1, 2, 3, 5))
        for group in cfg["groups"] if len(cfg["groups"]) > 1 and chance.random() < 0.5 else ():
            if chance.random() < 0.4:
                group["eagle"] = True
    for group in cfg["groups"]:
        if group["kind"] == "sliding_window" and cfg["num_prefill_lookahead"] > 1:
            group["extra_retained_tokens"] = cfg["num_prefill_lookahead"] - 1
    if kind == "mamba" and cfg["prefix_caching"] and len(cfg["groups"]) > 1:
        if chance.random() < 0.6:
            cfg["prefix_match_unit"] = chance.choice([unit for unit in (1, 2, 3, 4, 8) if all(
                group["block_size"] % unit == 0 for group in cfg["groups"])])
        if chance.random() < 0.4:
            cfg["mamba_shared_prefix_checkpoint"] = True
    if cfg["kv_events"] and chance.random() < 0.4:
        cfg["event_hashes"] = "bytes"
    habits = Habits(shared=0.8, lengths=(1, 120), adapters=0.15, salts=0.1, skips=0.05, images=0.15,
                    loads=chance.choice((0, 0, 0.2)), aborts=0.06, reports=0.1 if cfg["kv_events"] else 0)
    return (pool if chance.random() < 0.6 else tight_pool)(chance, cfg), habits


class KVCacheCalls:
    """Makes the calls of one trace of `kvm`."""

    def __init__(self, chance, engine, cfg, habits, apply):
        self.chance, self.engine, self.cfg, self.habits, self.apply = chance, engine, cfg, habits, apply
        self.requests = engine.requests
        self.prompts = []
        self.num_added = 0
        self.unit = math.lcm(*(group["block_size"] for group in cfg["groups"]))

    def often(self, probability):
        return self.chance.random() < probability

    def those(self, *statuses):
        return [request_id for request_id, request in self.requests.items() if request.status.name in statuses]

    def run(self):
        for _ in range(self.chance.choice(NUM_CALLS)):
            if len(self.requests) < 10 and self.often(0.25):
                self.apply(dict(op="new", req=self.draw_request()))
            waiting, running = self.those("WAITING", "PREEMPTED"), self.those("RUNNING")
            loading = self.those("WAITING_FOR_REMOTE_KVS")
            if waiting and self.often(0.4):
                self.admit(self.chance.choice(waiting))
            if running and self.often(0.8):
                self.advance(self.chance.choice(running))
            if loading and self.often(0.3):
                self.end_load(self.chance.choice(loading))
            if self.requests and self.often(self.habits.aborts):
                self.end(self.chance.choice([*self.requests]))
            if self.engine.popped and self.often(0.3):
                self.apply(dict(op="free_popped", id=self.chance.choice([*self.engine.popped])))
            if self.often(0.4):
                self.apply(dict(op="new_step"))
            if self.often(0.5):
                self.interfere()

    # Requests.

    def draw_request(self):
        chance, habits = self.chance, self.habits
        length = chance.randint(*habits.lengths)
        if self.often(0.4):
            length = self.unit * chance.randint(1, 4) + chance.choice((-1, 0, 1))
        prompt = []
        if self.prompts and self.often(habits.shared):
            known = chance.choice(self.prompts[-6:])
            prompt = known[:chance.choice((len(known), chance.randint(0, len(known))))]
        prompt = prompt + [chance.randint(3, VOCABULARY) for _ in range(length - len(prompt))]
        prompt = prompt[:self.cfg["max_model_len"] - 1] or [3]
        self.prompts.append(prompt)
        req = dict(id=f"q{self.num_added}", prompt=prompt, max_tokens=64, arrival=float(self.num_added))
        self.num_added += 1
        if self.often(habits.adapters):
            req["lora"] = dict(name="l1", id=1, path="/adapters/1")
        if self.often(habits.salts):
            req["salt"] = "a"
        if self.often(habits.skips):
            req["skip_reading_prefix_cache"] = True
        if self.often(habits.images):
            offset = chance.randrange(len(prompt))
            req["mm"] = [dict(hash=chance.choice(("m0", "m1")), offset=offset,
                              length=chance.randint(1, len(prompt) - offset))]
        if self.often(habits.reports):
            req["kv_cache_report_mode"] = "full"
        return req

    def chunk(self, start, end):
        """How many of the tokens from start to end a step takes: often all, or up to a boundary of blocks."""
        size = self.chance.choice(self.cfg["groups"])["block_size"] if self.often(0.5) else self.unit
        middle = self.chance.randint(start, end) // size * size
        if self.often(0.5) or middle <= start:
            middle = end
        return (middle if self.often(0.85) else self.chance.randint(start + 1, end)) - start

    def admit(self, request_id):
        chance, request = self.chance, self.requests[request_id]
        hit = self.apply(dict(op="get_computed", id=request_id))
        self.apply(dict(op="set", id=request_id, boundary=hit["boundary"] if self.often(0.9) else 0))
        start, operation = hit["num"], dict(op="alloc", id=request_id, num_new_computed=hit["num"], use_hit=True,
                                            has_scheduled=self.often(0.7), full_fit=self.often(0.5))
        if self.often(self.habits.loads) and start % self.unit == 0:
            operation["delay"] = self.often(0.6)
            count = request.num_tokens - start - (0 if operation["delay"] else 1)
            operation["ext"] = chance.choice((count, chance.randint(0, count), count // self.unit * self.unit))
            if operation["ext"] == 0:
                operation["delay"] = False
            start += operation["ext"]
        operation["num_new"] = 0 if operation.get("delay") else self.chunk(start, request.num_tokens)
        self.add_options(operation)
        if self.apply(operation)["blocks"] is None:
            return
        self.apply(dict(op="set", id=request_id, computed=start + operation["num_new"],
                        status="WAITING_FOR_REMOTE_KVS" if operation.get("delay") else "RUNNING"))

    def add_options(self, operation):
        if self.often(0.3):
            operation["lookahead"] = self.chance.randint(0, 5)
        if self.often(0.15):
            operation["reserved"] = self.chance.randint(0, 5)

    def end_load(self, request_id):
        request = self.requests[request_id]
        count = request.num_computed_tokens if self.often(0.8) else self.chance.randint(0, request.num_computed_tokens)
        self.apply(dict(op="cache", id=request_id, n=count))
        self.apply(dict(op="set", id=request_id, status="RUNNING",
                        computed=min(count, request.num_tokens - 1)))

    def advance(self, request_id):
        """A step of a request: the rest of its prompt or part of it, or new tokens, with drafts of which some stay."""
        chance, request, limit = self.chance, self.requests[request_id], self.cfg["max_model_len"]
        missing = request.num_computed_tokens + 1 - request.num_tokens
        if missing > 0:
            count = min(missing + chance.choice((0, 0, 0, 1, 2)), limit - request.num_tokens)
            if count < missing:
                self.end(request_id)
                return
            self.apply(dict(op="append", id=request_id, toks=[chance.randint(3, VOCABULARY) for _ in range(count)]))
        computed = request.num_computed_tokens
        count = self.chunk(computed, request.num_tokens)
        drafts = 0
        if computed + count == request.num_tokens and self.often(0.4):
            drafts = min(chance.randint(0, 5), limit - request.num_tokens)
        operation = dict(op="alloc", id=request_id, num_new=count + drafts)
        self.add_options(operation)
        if self.apply(operation)["blocks"] is None:
            self.preempt(chance.choice(self.those("RUNNING")))
            return
        operation = dict(op="set", id=request_id, computed=computed + count + chance.randint(0, drafts))
        if self.often(0.3):
            operation["in_flight"] = chance.choice((0, count, count + drafts))
        self.apply(operation)

    def preempt(self, request_id):
        self.apply(dict(op="free", id=request_id))
        self.apply(dict(op="set", id=request_id, computed=0, in_flight=0, status="PREEMPTED"))

    def end(self, request_id):
        if self.often(0.3):
            self.apply(dict(op="pop_free", id=request_id))
        else:
            self.apply(dict(op="free", id=request_id, drop=True))

    # Calls that need no request, or any.

    def interfere(self):
        chance = self.chance
        action = chance.choices(("events", "take_new_ids", "take_copies", "reset", "evict", "request"),
                                (8, 2, 8, 1, 1, 10))[0]
        if action == "evict":
            count = min(3, self.cfg["num_blocks"] - 1)
            self.apply(dict(op="evict", ids=sorted(chance.sample(range(1, self.cfg["num_blocks"]), count))))
        elif action == "request":
            if self.requests:
                self.ask(chance.choice([*self.requests]))
        else:
            self.apply(dict(op=action))

    def ask(self, request_id):
        chance, request = self.chance, self.requests[request_id]
        action = chance.choices(("estimate", "clip", "common", "get_computed", "cache", "skip", "preempt"),
                                (5, 5, 1, 2, 5, 5, 2))[0]
        if action == "preempt":
            if request.status.name == "RUNNING":
                self.preempt(request_id)
        elif action in ("cache", "skip", "clip"):
            if action == "clip" or request.status.name == "RUNNING":
                most = min(request.num_computed_tokens, request.num_tokens)
                self.apply(dict(op=action, id=request_id, n=chance.randint(0, most)))
        else:
            self.apply(dict(op=action, id=request_id))


MANAGER_FAMILIES = {"enc": enc, "kvm": kvm}
