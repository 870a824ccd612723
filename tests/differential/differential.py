#!/usr/bin/env python3
"""Random configurations of every family: what Troupe says against what transformers says, in float32.

  differential.py [--count N] [--seed N] [--only INDEX] [--keep FOLDER] [--gguf | --fields] [FAMILY...]

The family "adapters" is of random LoRA adapters on random models of other families, against PEFT; "damaged" has a
tensor that is missing or of another shape, which the error must name with its file and both shapes. With --gguf, each
checkpoint is a GGUF file, which llama.cpp's converter writes (gguf_files.py). With --fields, one configuration of each
family, and each field that its class has in transformers, also inside of nested objects: alone null, absent and with
other values. Those are printed that are refused although transformers computes the same as without the change.

Of each configuration a random checkpoint is written, and answered by build/release/tests/answer_models (or
$TROUPE_ANSWER_MODELS). Troupe continues a few prompts greedily; transformers reads prompt and continuation at once. All
log-probabilities must agree within 1e-3, or within a few times what float64 changes in the rows of transformers where
that is more, and each token must be the best of its row unless another is as good. A configuration that
is refused by name counts as refused; the texts of all refusals are printed, as each must be of something that is really
not supported. A case is made of seed, family and index alone: --only makes it again, --keep leaves its folder.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

import torch

import gguf_files
import reference
from families import FAMILIES, foreign_fields

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOLERANCE = 1e-3
ROUNDING_FACTOR = 4  # of what float64 changes in transformers' rows, where that is much
LENGTHS, OUTPUTS = (1, 6, 19, 45), 8
LONG_SHARE, LONG = 0.25, 330  # of the cases, whose last prompt has so many tokens if the model takes them
SHORT = ("whisper", "bert", "roberta", "classifier", "gemma3", "llava")  # images come on top
MAX_DRAWS = 200
FOREIGN_SHARE = 0.3  # of the cases
UNCHANGED = {"architectures", "model_type", "vocab_size", "num_hidden_layers", "bos_token_id", "pad_token_id", "id2label",
             "label2id", "dtype", "output_attentions", "output_hidden_states", "return_dict"}  # of --fields
ADAPTERS = "adapters"  # on any of ADAPTED, with PEFT
DAMAGED = "damaged"  # any of ADAPTED with a wrong tensor, which an error must name
PACKED = "gpt_oss_mxfp4"
ADAPTED = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "granite", "olmo2", "olmo3", "seed_oss",
           "ernie4_5", "exaone4", "smollm3", "glm4", "glm4_moe", "mixtral", "qwen3_moe", "qwen2_moe", "gpt_oss",
           "llama4_text", "deepseek_v2", "deepseek_v3", "bamba", "granite_hybrid", "falcon_h1", "mamba2")


class Answers:
    """The program that answers, kept for all cases."""

    def __init__(self):
        program = os.environ.get("TROUPE_ANSWER_MODELS", ROOT / "build/release/tests/answer_models")
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                                        text=True)

    def ask(self, **case):
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.log.seek(0)
            raise SystemExit(f"{self.log.read()[-2000:]}\nanswer_models ended with {code} at {case['model']}")
        return json.loads(line)


class Case:
    """One checkpoint, and what is asked of it."""

    def __init__(self, family, seed, index, folder, is_gguf=False):
        self.family = family
        self.gguf = folder.with_suffix(".gguf") if is_gguf else None
        chance = random.Random(f"{seed} {family} {index}")
        for self.num_draws in range(MAX_DRAWS):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                base = {ADAPTERS: chance.choice(ADAPTED), DAMAGED: chance.choice(ADAPTED),
                        PACKED: "gpt_oss"}.get(family, family)
                config = FAMILIES[base](chance)
                if family == PACKED:
                    config |= dict(hidden_size=chance.choice((32, 64, 96)), intermediate_size=chance.choice((32, 64)))
                if family == base and not is_gguf and chance.random() < FOREIGN_SHARE:
                    config |= foreign_fields(config, chance)
                if is_gguf:
                    gguf_files.settle(family, config)
                self.checkpoint = reference.Checkpoint(folder, config, chance, in_one_file=family == PACKED)
                self.adapter = reference.add_adapter(self.checkpoint, chance) if family == ADAPTERS else None
                if family == PACKED:
                    reference.pack_experts(self.checkpoint, chance)
                if is_gguf:
                    gguf_files.convert(folder, self.gguf)
                    gguf_files.round_decays(self.checkpoint)
                self.named = reference.damage(self.checkpoint, chance) if family == DAMAGED else None
                self.draw_prompts(chance)
                self.expected = self.reference_rows([[*prompt] for prompt in self.prompts])
                if all(bool(torch.isfinite(rows).all()) for rows in self.expected):
                    return
                self.rejection = "not finite"
            except Exception as error:  # whatever transformers says of a configuration
                self.rejection = f"{type(error).__name__}: {error}"
        raise SystemExit(f"{family}: transformers takes none of {MAX_DRAWS} configurations; the last: {self.rejection}")

    @property
    def config(self):
        return self.checkpoint.model.config

    def draw_prompts(self, chance):
        text = self.config.get_text_config()
        shortest = 1
        rope = getattr(text, "rope_parameters", None) or {}
        self.is_dynamic = rope.get("rope_type") == "dynamic"
        if rope.get("rope_type") == "longrope":
            # Troupe takes the factors of the longest text; transformers those of the text at hand.
            shortest = 5
        limit = text.vocab_size - (1 if self.family in ("gemma3", "llava") else 0)
        lengths = [max(length, shortest) for length in LENGTHS]
        may_be_long = not self.is_dynamic and self.family not in SHORT
        if chance.random() < LONG_SHARE and may_be_long:
            longest = getattr(text, "max_position_embeddings", None) or LONG + OUTPUTS
            lengths[-1] = max(min(LONG, longest - OUTPUTS), lengths[-1])
        # Of these, transformers takes the token that pads for none of the text.
        padding = text.pad_token_id if self.family in ("roberta", "classifier") else None
        known = [token for token in range(limit) if token != padding]
        self.prompts = [[chance.choice(known) for _ in range(length)] for length in lengths]
        self.inputs = [{} for _ in self.prompts]
        self.items = None
        self.normalises = False
        if self.family == "whisper":
            self.add_sounds(chance)
        elif self.family in ("gemma3", "llava"):
            self.add_images(chance)
        elif self.family in ("bert", "roberta", "qwen3_embedding"):
            self.pooling = chance.choice(("last",) if self.family == "qwen3_embedding" else ("cls", "mean", "last"))
            self.normalises = chance.random() < 0.7
            self.checkpoint.add_pooling(self.pooling, self.normalises)

    def item(self, chance, modality, offset, length, shape):
        generator = torch.Generator().manual_seed(chance.getrandbits(30))
        values = torch.randn(shape, generator=generator)
        return values, dict(modality=modality, offset=offset, length=length, shape=list(shape),
                            values=values.flatten().tolist())

    def add_sounds(self, chance):
        rows = self.config.max_source_positions
        self.items = []
        for inputs in self.inputs:
            values, item = self.item(chance, "audio", 0, rows, (self.config.num_mel_bins, 2 * rows))
            inputs["input_features"] = values[None]
            self.items.append([item])

    def add_images(self, chance):
        vision, token = self.config.vision_config, self.config.image_token_id
        if self.family == "gemma3":
            count = self.config.mm_tokens_per_image
        else:
            has_class = vision.model_type == "clip_vision_model"
            skips = self.config.vision_feature_select_strategy == "default"
            count = (vision.image_size // vision.patch_size) ** 2 + has_class - skips
        self.items = []
        for i, inputs in enumerate(self.inputs):
            self.items.append([])
            images = []
            for offset in ([], [2], [1], [5, 5 + count + 2])[i]:
                if offset > len(self.prompts[i]):
                    continue
                self.prompts[i][offset:offset] = [token] * count
                values, item = self.item(chance, "image", offset, count, (3, vision.image_size, vision.image_size))
                images.append(values)
                self.items[-1].append(item)
            if images:
                inputs["pixel_values"] = torch.stack(images)

    def reference_rows(self, texts):
        if self.family == "classifier":
            return [reference.classes(self.checkpoint.model, text) for text in texts]
        if hasattr(self, "pooling"):
            return [reference.embedding(self.checkpoint.model, text, self.pooling, self.normalises) for text in texts]
        rows = []
        for text, inputs in zip(texts, self.inputs):
            if self.family == "gemma3":
                kinds = [[int(token == self.config.image_token_id) for token in text]]
                inputs = dict(inputs, token_type_ids=torch.tensor(kinds))
            rows.append(reference.log_probabilities(self.checkpoint.model, text, self.is_dynamic, **inputs))
        return rows

    def difference(self, answer):
        """Empty: there is none."""
        if "embeddings" in answer:
            found = [torch.tensor(each) for each in answer["embeddings"]]
            if self.normalises:
                found = [torch.nn.functional.normalize(each, dim=0) for each in found]
            if any(each.shape != expected.shape for each, expected in zip(found, self.expected)):
                return f"{len(found[0])} numbers, expected {len(self.expected[0])}"
            return worst([abs(expected - each) for expected, each in zip(self.expected, found)])
        if self.family in ("gemma3", "llava"):  # to transformers an image's token stands for an image
            for tokens in answer["tokens"]:
                if self.config.image_token_id in tokens:
                    del tokens[tokens.index(self.config.image_token_id) + 1:]
        texts = [prompt + tokens[:-1] for prompt, tokens in zip(self.prompts, answer["tokens"])]
        expected = self.reference_rows(texts)
        reason = self.difference_of_rows(answer, expected, TOLERANCE)
        if reason:
            tolerance = TOLERANCE + ROUNDING_FACTOR * self.rounding(texts, expected)
            reason = self.difference_of_rows(answer, expected, tolerance)
        return reason

    def difference_of_rows(self, answer, reference_rows, tolerance):
        for prompt, tokens, expected, *found in zip(self.prompts, answer["tokens"], reference_rows,
                                                    answer["prompt_logprobs"], answer["logprobs"]):
            rows = torch.tensor(found[0] + found[1][:len(tokens)])
            if rows.shape != expected.shape:
                return f"rows of {tuple(rows.shape)}, expected {tuple(expected.shape)}"
            reason = worst([scaled_difference(rows, expected)], tolerance)
            for row, token in zip(expected[len(prompt) - 1:], tokens):
                if row.max() - row[token] > tolerance:
                    reason = reason or f"token {token} is not the best by {float(row.max() - row[token]):.2g}"
            if reason:
                return reason
        return ""

    def rounding(self, texts, expected):
        """How far transformers' own rows move when it computes them in float64: large weights without a scale before
        the softmax, as of granite, magnify the rounding of float32 from layer to layer."""
        model = self.checkpoint.model
        model.set_experts_implementation("eager")  # the grouped product takes no float64
        try:
            model.double()
            in_float64 = self.reference_rows(texts)
        except RuntimeError:  # a model that casts some of its tensors to float32
            return 0.0
        finally:
            model.float()
        return max(float(scaled_difference(*rows).max()) for rows in zip(in_float64, expected))

    def ask(self, answers):
        """What Troupe says, or refuses with."""
        case = dict(model=str(self.gguf or self.checkpoint.folder), prompts=self.prompts, num_outputs=OUTPUTS)
        if self.items is not None:
            case["items"] = self.items
        if self.adapter is not None:
            case["lora"] = str(self.adapter)
        return answers.ask(**case)

    @staticmethod
    def is_refusal(answer):
        """Another answer to the same question is an error, too, but of Troupe."""
        return "error" in answer and "another answer" not in answer["error"]


class FieldCase(Case):
    """A configuration as it is given. Throws what transformers throws."""

    def __init__(self, family, config, seed, folder):
        self.family, self.gguf, self.adapter, self.named = family, None, None, None
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        chance = random.Random(f"{seed} {family}")
        self.checkpoint = reference.Checkpoint(folder, config, chance, as_given=True)
        self.draw_prompts(chance)
        self.expected = self.reference_rows([[*prompt] for prompt in self.prompts])
        if not all(bool(torch.isfinite(rows).all()) for rows in self.expected):
            raise ValueError("not finite")

    def outcome(self, answers):
        """Which count it belongs to, and the reason of a difference."""
        answer = self.ask(answers)
        if self.is_refusal(answer):
            return "refused", answer["error"]
        reason = answer.get("error") or self.difference(answer)
        return ("different" if reason else "equal"), reason

    def equals(self, other):
        """Whether transformers computes the same."""
        return all(mine.shape == others.shape and float(abs(mine - others).max()) <= TOLERANCE
                   for mine, others in zip(self.expected, other.expected))


def other_values(value):
    if isinstance(value, bool):
        return None, not value
    if isinstance(value, int):
        return None, value + 1, max(value // 2, 1), 2 * value, 0
    if isinstance(value, float):
        return None, 1.7 * value + 0.01, 0.3 * value, 0.0
    if isinstance(value, str):
        return None, "relu", "gelu", "silu", "gelu_pytorch_tanh"
    if isinstance(value, list):
        return None, value[:-1], value[::-1]
    return (None,) if value is not None else (True, False, 2, 0.7, 8)


def changed_fields(config, known):
    """The configuration with one field changed, for each field and each value."""
    for name, value in sorted((config | known).items()):
        if name in UNCHANGED:
            continue
        if isinstance(config.get(name), dict):
            for inner, changed in changed_fields(config[name], known.get(name) or {}):
                yield f"{name}.{inner}", config | {name: changed}
            if name.endswith("_config"):
                continue  # the whole one's default is of a large model
        if name in config:
            yield name, {key: config[key] for key in config if key != name}
        for other in other_values(value):
            if name not in config or config[name] != other:
                yield f"{name}={other}", config | {name: other}


def run_fields(family, arguments, answers, folder):
    chance = random.Random(f"{arguments.seed} {family} fields")
    for _ in range(MAX_DRAWS):
        config = FAMILIES[family](chance)
        try:
            given = FieldCase(family, config, arguments.seed, folder)
        except Exception:  # whatever transformers says of a configuration
            continue
        rope = getattr(given.config.get_text_config(), "rope_parameters", None) or {}
        # With either, transformers' rows depend on the length of the text.
        if rope.get("rope_type") not in ("dynamic", "longrope") and given.outcome(answers)[0] == "equal":
            break
    else:
        raise SystemExit(f"{family}: none of {MAX_DRAWS} configurations is equal")
    counts = collections.Counter()
    for name, changed in changed_fields(config, given.config.to_dict()):
        try:
            case = FieldCase(family, changed, arguments.seed, folder)
            kind, reason = case.outcome(answers)
        except Exception:  # also of a value with which it computes only some prompts
            kind, reason = "drawn again", ""
        counts[kind] += 1
        if kind == "different":
            print(f"{family} {name}: {reason}\n  {json.dumps(changed)}", flush=True)
        if kind == "refused" and case.equals(given):
            print(f"{family} {name}: refused, and is the same: {kind_of_refusal(reason)}", flush=True)
    return counts


def scaled_difference(rows, expected):
    return abs(rows - expected) / (1 + abs(expected) / 10)


def worst(differences, tolerance=TOLERANCE):
    largest = max(float(each.max()) for each in differences)
    return "" if largest <= tolerance else f"differs by {largest:.2g}"


def kind_of_refusal(text):
    """Without numbers and the folder."""
    return re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "N", re.sub(r"/[^ :]*/", "", text))[:160]


def run(family, arguments, answers, folder):
    counts = collections.Counter()
    refusals = collections.Counter()
    indices = range(arguments.count) if arguments.only is None else [arguments.only]
    for index in indices:
        case = Case(family, arguments.seed, index, folder, arguments.gguf)
        counts["drawn again"] += case.num_draws
        answer = case.ask(answers)
        if case.named is not None:
            text = answer.get("error", "nothing")
            missing = [part for part in case.named if part not in text]
            counts["different" if missing else "equal"] += 1
            if missing:
                print(f"{family} {index}: {text} does not name {', '.join(missing)}\n"
                      f"  {json.dumps(case.checkpoint.config)}", flush=True)
        elif case.is_refusal(answer):
            counts["refused"] += 1
            refusals[kind_of_refusal(answer["error"])] += 1
            if arguments.keep:
                print(f"{family} {index}: {answer['error']}")
        else:
            reason = answer.get("error") or case.difference(answer)
            counts["different" if reason else "equal"] += 1
            if reason:
                print(f"{family} {index}: {reason}\n  {json.dumps(case.checkpoint.config)}", flush=True)
                if case.adapter is not None:
                    print(f"  {json.dumps(case.checkpoint.settings)}", flush=True)
        if arguments.keep:
            shutil.copytree(folder, arguments.keep / f"{family}-{index}", dirs_exist_ok=True)
    for text, count in refusals.most_common():
        print(f"{family}: refused {count}: {text}")
    numbers = (f"{counts[key]:6} {key}" for key in ("equal", "refused", "different", "drawn again"))
    print(f"{family:16}" + "".join(numbers), flush=True)
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--gguf", action="store_true")
    parser.add_argument("--fields", action="store_true")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join((*FAMILIES, PACKED, ADAPTERS, DAMAGED)))
    arguments = parser.parse_args()
    known = list(gguf_files.FAMILIES) if arguments.gguf else [*FAMILIES, PACKED, ADAPTERS, DAMAGED]
    if arguments.fields:
        known = list(FAMILIES)
    if arguments.gguf and gguf_files.SOURCE is None:
        parser.error("--gguf: LLAMA_CPP does not name llama.cpp's source")
    unknown = set(arguments.families) - set(known)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    answers = Answers()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for family in arguments.families or known:
            run_family = run_fields if arguments.fields else run
            results[family] = run_family(family, arguments, answers, pathlib.Path(folder) / "model")
    print(f"\n{'family':16}{'cases':>8}{'refused':>9}{'equal':>8}{'different':>11}")
    for family, counts in results.items():
        cases = counts["equal"] + counts["refused"] + counts["different"]
        print(f"{family:16}{cases:8}{counts['refused']:9}{counts['equal']:8}{counts['different']:11}")
    sys.exit(any(counts["different"] for counts in results.values()))


if __name__ == "__main__":
    main()
