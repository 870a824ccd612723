#!/usr/bin/env python3
"""lmcache_lookup.py FOLDER ENGINE PORT TOKENS: LMCacheLookupClient of the lmcache package asks an engine of one rank."""
import json
import sys
import types

from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.lookup_client.lmcache_lookup_client import LMCacheLookupClient
from lmcache.v1.rpc.zmq_transport import SocketParams, ZmqReqRepClientTransport
from lmcache.v1.rpc_utils import get_zmq_rpc_path_lmcache


def main(folder, engine, port, tokens):
    path = get_zmq_rpc_path_lmcache(engine, "lookup", int(port), 0, base_url=folder)
    transport = ZmqReqRepClientTransport([SocketParams(path, 0)], 60_000)
    metadata = types.SimpleNamespace(use_mla=False, world_size=1)
    client = LMCacheLookupClient(LMCacheEngineConfig.from_defaults(chunk_size=256), metadata, transport)
    print(client.lookup(json.loads(tokens), "a request"), "tokens are there", flush=True)
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
