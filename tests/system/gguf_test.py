#!/usr/bin/env python3
"""Mixtures of experts in GGUF files that the `gguf` package writes, with its own names of tensors: the tokens are those of
the folders that they were made from."""
import json
import pathlib
import shutil
import tempfile
import unittest

import gguf
import numpy

from support import run

MODELS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "models"


def tensors_of(path):
    """A safetensors file in bfloat16, as float32."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            first, end = (begin + offset for offset in entry["data_offsets"])
            bits = numpy.frombuffer(data[first:end], numpy.uint16).astype(numpy.uint32) << 16
            yield name, bits.view(numpy.float32).reshape(entry["shape"])


def write(folder, path, architecture, change):
    """What llama.cpp's converter does with such a folder."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    tokens = [f"[PAD{i}]" for i in range(config["vocab_size"])]
    types = [gguf.TokenType.UNUSED] * len(tokens)
    for token, number in tokenizer["model"]["vocab"].items():
        tokens[number], types[number] = token, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]], types[added["id"]] = added["content"], gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in tokenizer["model"]["merges"]])

    names = gguf.get_tensor_name_map(architecture, layers)
    experts = {}
    for name, tensor in tensors_of(folder / "model.safetensors"):
        if name.startswith("model.layers.") and int(name.split(".")[2]) >= layers:
            continue
        if ".experts." in name:
            before, _, rest = name.partition(".experts.")
            number, _, matrix = rest.partition(".")
            experts.setdefault(f"{before}.experts.{matrix}", {})[int(number)] = tensor
            continue
        if change is not None and (".q_proj." in name or ".k_proj." in name):
            tensor = change(tensor, head_dim)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), tensor)
    for name, matrices in experts.items():
        stack = numpy.stack([matrices[number] for number in sorted(matrices)])
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), stack)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave(rows, head_dim):
    """llama.cpp's files of Llama and Mixtral rotate neighbours."""
    return rows.reshape(-1, 2, head_dim // 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def answers(model, prompts):
    lines = [json.dumps({"prompt": prompt, "max_tokens": 24, "ignore_eos": True, "temperature": 0,
                         "return_token_ids": True}) for prompt in prompts]
    code, output, errors = run(["generate", str(model), "--dtype", "float32"], "\n".join(lines) + "\n")
    assert code == 0, errors
    return [json.loads(line)["choices"][0]["token_ids"] for line in output.splitlines()]


class ExpertsInFiles(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def test_mixtral(self):
        """All layers have experts, and the tokens are the reference's."""
        golden = json.loads((MODELS / "goldens" / "mixtral" / "golden.json").read_text())
        write(MODELS / "models" / "mixtral", self.folder / "model.gguf", gguf.MODEL_ARCH.LLAMA, interleave)
        found = answers(self.folder / "model.gguf", golden["prompts"][:5])
        self.assertEqual(found, [greedy[:24] for greedy in golden["greedy"][:5]])

    def test_qwen3_moe(self):
        """Its first layer: the second one is dense, which no file can say."""
        prompts = json.loads((MODELS / "goldens" / "qwen3_moe" / "golden.json").read_text())["prompts"][:5]
        folder = self.folder / "model"
        shutil.copytree(MODELS / "models" / "qwen3_moe", folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(dict(config, num_hidden_layers=1)))
        write(folder, self.folder / "model.gguf", gguf.MODEL_ARCH.QWEN3MOE, None)
        self.assertEqual(answers(self.folder / "model.gguf", prompts), answers(folder, prompts))


if __name__ == "__main__":
    unittest.main()
