#!/usr/bin/env python3
"""lmcache_client.py PORT: LMCServerConnector of the lmcache package, as it is, against a server on this host."""
import asyncio
import sys

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.connector import lm_connector


class Memory:
    """What the connector needs of LMCache's memory objects."""

    def __init__(self, tensor, fmt):
        self.tensor, self.fmt = tensor, fmt

    @property
    def byte_array(self):
        return memoryview(self.tensor.view(torch.uint8).numpy().reshape(-1)).cast("B")

    def get_shape(self):
        return self.tensor.shape

    def get_dtype(self):
        return self.tensor.dtype

    def get_memory_format(self):
        return self.fmt


class Backend:
    config = metadata = None

    def allocate(self, shape, dtype, fmt=None):
        return Memory(torch.zeros(shape, dtype=dtype), fmt)


async def main(port):
    # It only keeps the configuration, which there is none of here.
    lm_connector.RemoteConnector.__init__ = lambda self, *arguments, **named: None
    client = lm_connector.LMCServerConnector("127.0.0.1", port, asyncio.get_running_loop(), Backend())
    for number in range(20):
        key = CacheEngineKey(model_name="a/model", world_size=1, worker_id=0, chunk_hash=(1 << 60) + number,
                             dtype=torch.bfloat16)
        assert not await client.exists(key)
        assert await client.get(key) is None
        tensor = torch.randn(2, 4, 256, 64).to(torch.bfloat16)
        await client.put(key, Memory(tensor, MemoryFormat.KV_2LTD))
        assert await client.exists(key)
        found = await client.get(key)
        assert torch.equal(found.tensor, tensor) and found.fmt == MemoryFormat.KV_2LTD
    print("20 values are the same")


asyncio.run(main(int(sys.argv[1])))
