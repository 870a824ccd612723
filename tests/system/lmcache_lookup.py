#!/usr/bin/env python3
"""lmcache_lookup.py FOLDER ENGINE PORT TOKENS [async]: LMCacheLookupClient of the lmcache package, or its LMCacheAsyncLookupClient,
asks an engine of one rank."""
import functools
import json
import sys
import time
import types

from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.lookup_client import lmcache_async_lookup_client
from lmcache.v1.lookup_client.lmcache_lookup_client import LMCacheLookupClient
from lmcache.v1.rpc.zmq_transport import SocketParams, ZmqReqRepClientTransport
from lmcache.v1.rpc_utils import get_zmq_rpc_path_lmcache

TIMEOUT_MS = 60_000


def ask(folder, engine, port, tokens):
    path = get_zmq_rpc_path_lmcache(engine, "lookup", port, 0, base_url=folder)
    transport = ZmqReqRepClientTransport([SocketParams(path, 0)], TIMEOUT_MS)
    metadata = types.SimpleNamespace(use_mla=False, world_size=1)
    client = LMCacheLookupClient(LMCacheEngineConfig.from_defaults(chunk_size=256), metadata, transport)
    found = client.lookup(tokens, "a request")
    client.close()
    return found


def ask_async(folder, engine, port, tokens):
    """As the scheduler does: it asks again in each step."""
    lmcache_async_lookup_client.get_zmq_rpc_path_lmcache = functools.partial(get_zmq_rpc_path_lmcache, base_url=folder)
    metadata = types.SimpleNamespace(use_mla=False, world_size=1, engine_id=engine,
                                     kv_connector_extra_config={"lmcache_rpc_port": port})
    config = LMCacheEngineConfig.from_defaults(chunk_size=256, enable_async_loading=True, lookup_timeout_ms=TIMEOUT_MS)
    client = lmcache_async_lookup_client.LMCacheAsyncLookupClient(config, metadata)
    assert client.lookup_cache("a request") == -1
    assert client.lookup(tokens, "a request") is None
    deadline = time.monotonic() + TIMEOUT_MS / 1000
    while (found := client.lookup_cache("a request")) is None and time.monotonic() < deadline:
        pass
    client.cancel_lookup("a request")
    client.lookup_cache("another")  # sends the first one's cleanup
    return found


def main(folder, engine, port, tokens, kind=""):
    found = (ask_async if kind else ask)(folder, engine, int(port), json.loads(tokens))
    print(found, "tokens are there", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
