#!/usr/bin/env python3
"""Writes tests/golden/draft_heads: draft heads for models of tests/golden/models, and what they guess.

  make_draft_head_goldens.py [NAME...]     needs numpy, safetensors, torch and transformers 5, which no test does

Each head is trained for a moment on what its model says to the golden prompts, so that some of its guesses come true.
NAME/config.json and NAME/model.safetensors are a head as it is published (of mtp: the tensors that stand beside the
model's own); goldens/NAME.json has the guesses behind each known part of a text, as float32 gives them, -1 where two
tokens are as good; goldens/NAME.safetensors the states that the head takes, and its logits.
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.llama import modeling_llama as llama

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
OUT = GOLDEN / "draft_heads"
LENGTHS, NUM_KNOWN, NUM_GUESSES, NUM_ROWS, MIN_GAP = (7, 16, 33, 100), 24, 3, 6, 2e-3
MAX_STEPS, ENOUGH = 300, 3.0  # some guesses are wrong then
# Layers of the model whose inputs EAGLE-3 takes; of four layers there are no usual ones.
AUX_LAYERS = [1, 2, 3]
DRAFT_VOCAB = 320


def load_target(name):
    folder = GOLDEN / "models" / "models" / name
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()


def causal_mask(size):
    return torch.full((size, size), torch.finfo(torch.float32).min).triu(1)[None, None]


def norm(config):
    return llama.LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Eagle(nn.Module):
    """x = fc([embedding, state]), then a layer of llama without its first norm; the model's head."""

    def __init__(self, target):
        super().__init__()
        config = llama.LlamaConfig.from_dict(dict(target.config.to_dict(), num_hidden_layers=1, intermediate_size=64))
        config._attn_implementation = "eager"
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=True)
        self.layers = nn.ModuleList([llama.LlamaDecoderLayer(config, 0)])
        self.layers[0].input_layernorm = nn.Identity()
        self.rotary, self.config = [llama.LlamaRotaryEmbedding(config)], config
        self.embed, self.lm_head = [target.model.embed_tokens], [target.lm_head]

    def target_states(self, hidden):
        return hidden[-1]

    def combine(self, states):
        return states

    def forward(self, tokens, states):
        x = self.fc(torch.cat([self.embed[0](tokens), states], -1))[None]
        positions = torch.arange(len(tokens))[None]
        x = self.layers[0](x, attention_mask=causal_mask(len(tokens)), position_ids=positions,
                           position_embeddings=self.rotary[0](x, positions))
        return x[0]

    def logits(self, states):
        return self.lm_head[0](states)

    def ids(self, columns):
        return columns

    def columns(self, ids):
        return ids

    def config_json(self, target):
        return dict(architectures=["LlamaForCausalLM"], model_type="llama", bias=True, **self.sizes())

    def sizes(self):
        config = self.config
        return dict(hidden_size=config.hidden_size, intermediate_size=64, num_hidden_layers=1,
                    num_attention_heads=config.num_attention_heads, num_key_value_heads=config.num_key_value_heads,
                    head_dim=config.head_dim, hidden_act="silu", rms_norm_eps=config.rms_norm_eps, rope_theta=10000.0,
                    rope_scaling=dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, rope_type="llama3",
                                      original_max_position_embeddings=64),
                    max_position_embeddings=128, tie_word_embeddings=False, vocab_size=config.vocab_size,
                    torch_dtype="bfloat16")

    def tensors(self):
        return dict(self.state_dict())


class Eagle3(Eagle):
    """Attention takes [norm(embedding), norm(state)]; a norm and a head of its own, of the most usual tokens."""

    def __init__(self, target, said):
        super().__init__(target)
        config = self.config
        size, layer = config.hidden_size, self.layers[0]
        self.fc = nn.Linear(len(AUX_LAYERS) * size, size, bias=False)
        layer.input_layernorm, layer.hidden_norm, self.norm = norm(config), norm(config), norm(config)
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(layer.self_attn, name, nn.Linear(2 * size, getattr(layer.self_attn, name).out_features, bias=False))
        self.head = nn.Linear(size, DRAFT_VOCAB, bias=False)
        usual = said.bincount(minlength=config.vocab_size).argsort(descending=True, stable=True)
        self.d2t = [usual[:DRAFT_VOCAB].sort().values]
        self.t2d = [torch.full((config.vocab_size,), -1).scatter(0, self.d2t[0], torch.arange(DRAFT_VOCAB))]

    def target_states(self, hidden):
        return torch.cat([hidden[layer] for layer in AUX_LAYERS], -1)

    def combine(self, states):
        return self.fc(states)

    def forward(self, tokens, states):
        layer = self.layers[0]
        pair = torch.cat([layer.input_layernorm(self.embed[0](tokens)), layer.hidden_norm(states)], -1)[None]
        positions = torch.arange(len(tokens))[None]
        attended = layer.self_attn(pair, position_embeddings=self.rotary[0](pair, positions),
                                   attention_mask=causal_mask(len(tokens)))[0][0]
        states = states + attended
        return states + layer.mlp(layer.post_attention_layernorm(states))

    def logits(self, states):
        return self.head(self.norm(states))

    def ids(self, columns):
        return self.d2t[0][columns]

    def columns(self, ids):
        return self.t2d[0][ids]

    def config_json(self, target):
        return dict(architectures=["LlamaForCausalLMEagle3"], model_type="llama", draft_vocab_size=DRAFT_VOCAB,
                    eagle_config=dict(use_aux_hidden_state=True, eagle_aux_hidden_state_layer_ids=AUX_LAYERS),
                    **self.sizes())

    def tensors(self):
        tensors = {key.replace("layers.0.", "midlayer.").replace("head.weight", "lm_head.weight"): value
                   for key, value in self.state_dict().items()}
        tensors["d2t"] = self.d2t[0] - torch.arange(DRAFT_VOCAB)
        tensors["t2d"] = self.t2d[0] >= 0
        return tensors


class Mtp(nn.Module):
    """x = eh_proj([norm(embedding), norm(state)]), then a layer of the model; a norm of its own, the model's head."""

    def __init__(self, target):
        super().__init__()
        config = type(target.config).from_dict(dict(target.config.to_dict(), num_hidden_layers=1,
                                                    first_k_dense_replace=0))
        config._attn_implementation, config._experts_implementation = "eager", "eager"
        self.whole = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        self.enorm, self.hnorm, self.norm = norm(config), norm(config), norm(config)
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.config, self.number = config, target.config.num_hidden_layers
        self.embed, self.lm_head = [target.model.embed_tokens], [target.lm_head]
        for key, values in self.whole.named_parameters():
            if "norm" not in key:
                values.data.normal_(0.0, values.shape[-1] ** -0.5)

    target_states, combine, columns, ids = Eagle.target_states, Eagle.combine, Eagle.columns, Eagle.ids

    def forward(self, tokens, states):
        x = self.eh_proj(torch.cat([self.enorm(self.embed[0](tokens)), self.hnorm(states)], -1))[None]
        positions = torch.arange(len(tokens))[None]
        model = self.whole.model
        x = model.layers[0](x, attention_mask=causal_mask(len(tokens)), position_ids=positions,
                            position_embeddings=model.rotary_emb(x, positions))
        return x[0]

    def logits(self, states):
        return self.lm_head[0](self.norm(states))

    def config_json(self, target):
        return dict(json.loads((GOLDEN / "models" / "models" / "deepseek_v3" / "config.json").read_text()),
                    num_nextn_predict_layers=1)

    def tensors(self):
        folder = OUT / "saved"
        self.whole.save_pretrained(folder)
        saved, name = load_file(folder / "model.safetensors"), f"model.layers.{self.number}."
        shutil.rmtree(folder)
        tensors = {name + key.removeprefix("model.layers.0."): value for key, value in saved.items()
                   if key.startswith("model.layers.0.")}
        for key in ("enorm", "hnorm", "eh_proj"):
            tensors[name + key + ".weight"] = getattr(self, key).weight.data
        tensors[name + "shared_head.norm.weight"] = self.norm.weight.data
        return tensors


def train(head, texts):
    optimizer = torch.optim.Adam([p for p in head.parameters()], lr=2e-3)
    for step in range(MAX_STEPS):
        loss = 0
        for tokens, states, final in texts:
            # The state of token i and token i + 1 give the state of token i + 1, and token i + 2.
            taken = head.combine(states[:-2])
            guessed = head(tokens[1:-1], taken)
            wanted = head.columns(tokens[2:])
            scores = nn.functional.cross_entropy(head.logits(guessed), wanted, ignore_index=-1)
            # And once more with guessed states, as they are drafted with.
            again = head(tokens[2:-1], guessed[:-1])
            scores = scores + nn.functional.cross_entropy(head.logits(again), head.columns(tokens[3:]), ignore_index=-1)
            loss = loss + scores
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        if loss.item() / len(texts) < ENOUGH:
            break
    print(step + 1, "steps, loss", loss.item() / len(texts), flush=True)
    for values in head.parameters():
        values.data = values.data.to(torch.bfloat16).float()


@torch.no_grad()
def guesses_behind(head, tokens, states):
    """Tokens behind these, of which the states are known but for the last one's."""
    states, tokens, guesses = head.combine(states[:len(tokens) - 1]), tokens[1:], []
    for _ in range(NUM_GUESSES):
        guessed = head(tokens, states)[-1:]
        best = head.logits(guessed)[0].topk(2)
        is_clear = best.values[0] - best.values[1] >= MIN_GAP
        guesses.append(int(head.ids(best.indices[:1])) if is_clear else -1)
        if not is_clear:
            break
        tokens, states = torch.cat([tokens, torch.tensor(guesses[-1:])]), torch.cat([states, guessed])
    return guesses


def write(name, head, target, golden):
    by_length = dict(zip(golden["lengths"], zip(golden["prompts"], golden["greedy"])))
    texts, all_texts = [], []
    for length in golden["lengths"]:
        prompt, said = by_length[length]
        tokens = torch.tensor(prompt + said)
        with torch.no_grad():
            hidden = target.model(tokens[None], output_hidden_states=True).hidden_states
        hidden = [layer[0] for layer in hidden]
        all_texts.append((tokens, head.target_states(hidden), hidden[-1]))
        if length in LENGTHS:
            texts.append((prompt, said, all_texts[-1]))
    train(head, all_texts)
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (OUT / "goldens").mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(head.config_json(target), indent=2) + "\n")
    save_file({key: (value.to(torch.bfloat16) if value.is_floating_point() else value).contiguous()
               for key, value in head.tensors().items()}, folder / "model.safetensors", {"format": "pt"})
    entries, num_right, num_first = [], 0, 0
    for prompt, said, (tokens, states, _) in texts:
        behind = {}
        for count in range(1, NUM_KNOWN + 1):
            behind[count] = guesses_behind(head, tokens[:len(prompt) + count], states)
            num_first += 1
            num_right += behind[count][0] == said[count]
        entries.append(dict(prompt=prompt, said=said[:NUM_KNOWN + NUM_GUESSES + 1], guesses=behind))
    (OUT / "goldens" / f"{name}.json").write_text(json.dumps(dict(texts=entries)) + "\n")
    prompt, said, (tokens, states, _) = texts[1]
    count = len(prompt) + 3
    with torch.no_grad():
        guessed = head(tokens[1:count + 1], head.combine(states[:count]))
        save_file(dict(tokens=tokens[1:count + 1].to(torch.int64), states=states[:count].contiguous(),
                       guessed=guessed[-NUM_ROWS:].contiguous(), logits=head.logits(guessed[-NUM_ROWS:]).contiguous()),
                  OUT / "goldens" / f"{name}.safetensors")
    print(name, f"{num_right} of {num_first} first guesses come true")


def main(names):
    for name in names or ("llama_eagle", "llama_eagle3", "deepseek_v3_mtp"):
        model = name.rsplit("_", 1)[0]
        torch.manual_seed(7)
        target = load_target(model)
        golden = json.loads((GOLDEN / "models" / "goldens" / model / "golden.json").read_text())
        for values in target.parameters():
            values.requires_grad = False
        said = torch.tensor([token for tokens in golden["greedy"] for token in tokens])
        head = {"llama_eagle": Eagle, "deepseek_v3_mtp": Mtp}.get(name, lambda of: Eagle3(of, said))(target)
        write(name, head, target, golden)


if __name__ == "__main__":
    main(sys.argv[1:])
