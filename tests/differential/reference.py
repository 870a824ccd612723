"""A random checkpoint of a configuration, and what transformers computes with it."""
import json
import pathlib
import warnings

import safetensors.torch
import torch
import transformers

transformers.logging.set_verbosity(50)
transformers.logging.disable_progress_bar()
warnings.filterwarnings("ignore")
torch.set_num_threads(1)

POOLINGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}


def randomise(model, generator):
    """Weights large enough that positions, windows, biases and routing show."""
    def normal(tensor, deviation, mean=0.0):
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * deviation + mean)

    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            last = name.rsplit(".", 1)[-1]
            if last == "e_score_correction_bias":
                normal(weight, 0.3)
            elif not isinstance(weight, torch.nn.Parameter) or "embed_positions" in name and "encoder" in name:
                continue  # of tables that are computed
            elif last in ("A_log", "dt_bias"):
                normal(weight, 0.6)
            elif weight.dim() == 1 and last in ("weight", "D"):  # norms keep their mean, 0 or 1
                normal(weight, 0.2, float(weight.float().mean().round()))
            elif weight.dim() == 1 or last.endswith("bias"):
                normal(weight, 0.3)
            elif "embed" in name and "patch" not in name:
                normal(weight, 0.7)
            elif "conv1d" in name:
                normal(weight, 0.5)
            else:
                fan_in = weight[0].numel() if weight.dim() != 3 or "conv" in name else max(weight.shape[1:]) // 2
                normal(weight, (2.0 if "q_proj" in name or "k_proj" in name else 1.3) * fan_in ** -0.5)


def model_class(config):
    return getattr(transformers, config["architectures"][0])


class Checkpoint:
    """A folder with config.json and weights. Throws what transformers throws."""

    def __init__(self, folder, config, random, in_one_file=False, as_given=False):
        self.folder = pathlib.Path(folder)
        self.random = random
        self.config = config
        (self.folder / "config.json").write_text(json.dumps(config))
        read = transformers.AutoConfig.from_pretrained(self.folder)
        model = model_class(config)(read)
        randomise(model, torch.Generator().manual_seed(random.getrandbits(30)))
        self.dtype = random.choice((torch.float32, torch.float32, torch.bfloat16, torch.float16))
        shard_size = "1GB" if in_one_file else random.choice(("1GB", "20KB"))
        model.to(self.dtype).save_pretrained(self.folder, max_shard_size=shard_size)
        (self.folder / "generation_config.json").unlink(missing_ok=True)
        if as_given or random.random() < 0.5:  # not as transformers writes it
            (self.folder / "config.json").write_text(json.dumps(config))
        self.model = self.load()

    def load(self):
        return model_class(self.config).from_pretrained(self.folder, dtype=torch.float32,
                                                         attn_implementation="eager").eval()

    def add_pooling(self, pooling, normalise):
        """The files of sentence-transformers."""
        names = ["Transformer", "Pooling"] + (["Normalize"] if normalise else [])
        paths = ["", "1_Pooling", "2_Normalize"]
        (self.folder / "modules.json").write_text(json.dumps(
            [dict(idx=i, name=str(i), path=paths[i], type="sentence_transformers.models." + name)
             for i, name in enumerate(names)]))
        (self.folder / "1_Pooling").mkdir(exist_ok=True)
        (self.folder / "1_Pooling" / "config.json").write_text(json.dumps({key: name == pooling
                                                                          for name, key in POOLINGS.items()}))


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
FP4_BLOCK = 32


def pack_experts(checkpoint, random):
    """The experts of gpt-oss as MXFP4: random numbers, which the model gets as what they stand for."""
    generator = torch.Generator().manual_seed(random.getrandbits(30))
    path = checkpoint.folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    with torch.no_grad():
        for name, weight in checkpoint.model.named_parameters():
            if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                continue
            experts, columns, rows = weight.shape
            codes = torch.randint(0, 16, (experts, rows, columns // FP4_BLOCK, FP4_BLOCK), generator=generator)
            scales = torch.randint(123, 128, codes.shape[:-1], generator=generator)
            values = FP4[codes] * torch.exp2(scales - 127.0)[..., None]
            weight.copy_(values.reshape(experts, rows, columns).transpose(1, 2))
            del tensors[name]
            tensors[name + "_blocks"] = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
            tensors[name + "_scales"] = scales.to(torch.uint8)
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((checkpoint.folder / "config.json").read_text())
    config["quantization_config"] = dict(quant_method="mxfp4", modules_to_not_convert=["lm_head"])
    (checkpoint.folder / "config.json").write_text(json.dumps(config))


def damage(checkpoint, random):
    """One tensor is missing, or of another shape. Gives what an error must name."""
    path = random.choice(sorted(checkpoint.folder.glob("*.safetensors")))
    tensors = safetensors.torch.load_file(path)
    name = random.choice(sorted(tensors))
    tensor = tensors.pop(name)
    named = [name]
    if random.random() < 0.7:
        shape = list(tensor.shape)
        shape[random.randrange(len(shape))] += random.choice((-1, 1, 3))
        tensors[name] = torch.zeros(shape, dtype=tensor.dtype)
        named += [path.name, json.dumps(shape), json.dumps(list(tensor.shape))]
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    return named


ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj",
           "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "in_proj", "shared_expert_gate",
           "embed_tokens", "lm_head")
STACKED = ("experts.gate_up_proj", "experts.down_proj")
EXPERT_NAMES = {"mixtral": (".block_sparse_moe.", "w1", "w3", "w2")}


def name_experts(folder, adapted, model_type):
    """The updates of stacks of experts' matrices, each under the name of one expert's matrix."""
    mixture, *names = EXPERT_NAMES.get(model_type, (".mlp.", "gate_proj", "up_proj", "down_proj"))
    path = folder / "adapter_model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for name, module in adapted.named_modules():
        if type(module).__name__ != "ParamWrapper" or module.num_experts == 1:
            continue
        a = tensors.pop(name + ".lora_A.weight").reshape(module.num_experts, -1, module.in_features)
        b = tensors.pop(name + ".lora_B.weight").reshape(module.out_features, -1, module.num_experts)
        is_down = module.parameter_name == "down_proj"
        parts = [(names[2], b)] if is_down else list(zip(names, b.chunk(2)))
        own = name.removesuffix(".base_layer").replace(".mlp.", mixture)
        for expert in range(module.num_experts):
            for part, rows in parts:
                tensors[f"{own}.{expert}.{part}.lora_A.weight"] = a[expert].clone()
                tensors[f"{own}.{expert}.{part}.lora_B.weight"] = rows[:, :, expert].clone()
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_parameters"] = None
    (folder / "adapter_config.json").write_text(json.dumps(config))


def add_adapter(checkpoint, random):
    """A folder as PEFT saves it; the model of the checkpoint becomes the adapted one."""
    import peft

    names = {name.rsplit(".", 1)[-1] for name, _ in checkpoint.model.named_modules()}
    linear_names = {name.rsplit(".", 1)[-1] for name, module in checkpoint.model.named_modules()
                    if isinstance(module, (torch.nn.Linear, torch.nn.Embedding))}
    known = [name for name in ADAPTED if name in names & linear_names]
    linear = [name for name in known if name.endswith("_proj")]
    parameters = [".".join(name.split(".")[-2:]) for name, _ in checkpoint.model.named_parameters()]
    stacked = [name for name in (*STACKED, "gate.weight") if name in parameters]
    fields = dict(r=random.choice((1, 2, 3, 8, 17)), lora_alpha=random.choice((1, 8, 11, 0.5)),
                  target_modules=random.choice(("all-linear", random.sample(known, random.randint(1, len(known))),
                                                random.sample(linear, random.randint(1, len(linear))))))
    if random.random() < 0.3:
        fields["use_rslora"] = True
    if random.random() < 0.1:
        fields["use_dora"] = True
    if random.random() < 0.2:
        fields["bias"] = random.choice(("all", "lora_only"))
    if random.random() < 0.2:
        fields["modules_to_save"] = random.choice((["lm_head"], ["embed_tokens"], ["input_layernorm"]))
    if random.random() < 0.3:
        fields["rank_pattern"] = {random.choice(linear): random.choice((1, 4, 9))}
    if random.random() < 0.3:
        fields["alpha_pattern"] = {random.choice(linear): random.choice((2, 5.5))}
    if random.random() < 0.2:
        fields["layers_to_transform"] = [0]
    if random.random() < 0.1:
        fields["exclude_modules"] = [random.choice(linear)]
    if stacked and random.random() < 0.7:
        fields["target_parameters"] = random.sample(stacked, random.randint(1, len(stacked)))
        if random.random() < 0.3:
            fields.setdefault("rank_pattern", {})[random.choice(stacked)] = random.choice((1, 5))
    checkpoint.settings = fields
    adapted = peft.get_peft_model(checkpoint.model, peft.LoraConfig(task_type="CAUSAL_LM", **fields))
    generator = torch.Generator().manual_seed(random.getrandbits(30))
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * random.choice((0.05, 0.2)))
            elif weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)
    folder = checkpoint.folder / "adapter"
    adapted.save_pretrained(folder)
    model_type = checkpoint.model.config.model_type
    saved = json.loads((folder / "adapter_config.json").read_text())  # PEFT writes patterns of its own, too
    has_patterns = saved["rank_pattern"] or saved["alpha_pattern"]
    if model_type not in ("gpt_oss", "llama4_text") and not has_patterns and random.random() < 0.5:
        name_experts(folder, adapted, model_type)
    checkpoint.model = adapted.eval()
    return folder


def embedding(model, prompt, pooling, normalise):
    base = getattr(model, "model", model)
    with torch.no_grad():
        hidden = base(torch.tensor([prompt])).last_hidden_state[0]
    row = {"cls": hidden[0], "mean": hidden.mean(0), "last": hidden[-1]}[pooling]
    return torch.nn.functional.normalize(row, dim=0) if normalise else row


def classes(model, prompt):
    """The numbers from which probabilities are made."""
    with torch.no_grad():
        return model(torch.tensor([prompt])).logits[0]


def one_by_one(model, ids):
    """A rotation that grows with the text: as when its tokens come one at a time."""
    cache, rows = None, []
    for token in ids:
        out = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0, -1])
    return torch.stack(rows)


def log_probabilities(model, ids, is_dynamic=False, **inputs):
    with torch.no_grad():
        if is_dynamic:
            logits = one_by_one(model, ids)
        elif "input_features" in inputs:
            logits = model(decoder_input_ids=torch.tensor([ids]), use_cache=False, **inputs).logits[0]
        else:
            logits = model(torch.tensor([ids]), use_cache=False, **inputs).logits[0]
    return torch.log_softmax(logits.float(), -1)
