#!/usr/bin/env python3
"""Writes tests/golden/models/{models,goldens}/llava and llava_siglip: tiny random LLaVA models and what transformers 5 computes.

  make_llava_goldens.py [NAME...]     needs numpy, pillow, safetensors, torch, torchvision and transformers 5, which no test does

Of the two, llava has CLIP, a Llama and the tensor names of transformers 4; llava_siglip has SigLIP, a Qwen2, another
layer, and the names of transformers 5. golden.json and golden.safetensors are as those of gemma3 beside them; besides,
`processed` lists images of tests/golden/images with processor settings, and pixels.I are their pixel values. Seeds are
tried until the two best logits of every greedy token differ by more than MIN_GAP.
"""
import json
import pathlib
import sys

import numpy
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor
from transformers.models.clip.image_processing_clip import CLIPImageProcessor
from transformers.models.siglip.image_processing_siglip import SiglipImageProcessor

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
IMAGES = GOLDEN / "images"
LLAMA = GOLDEN / "models" / "models" / "llama"
IMAGE, IMAGE_ID, VOCABULARY = "<image>", 768, 776
NUM_GREEDY, MIN_GAP = 48, 1e-3
# That of llava-hf/llava-1.5-7b-hf.
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{# Render all images first #}{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\\n' }}{% endfor %}{# Render all text next #}{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% else %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}")
TEXT = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=VOCABULARY, max_position_embeddings=512, rms_norm_eps=1e-5)
VISION = dict(hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=3, image_size=56,
              patch_size=14)
MODELS = {
    "llava": dict(
        config=dict(text_config=dict(TEXT, model_type="llama"), vision_config=dict(VISION, model_type="clip_vision_model"),
                    vision_feature_layer=-2, vision_feature_select_strategy="default", projector_hidden_act="gelu"),
        processor=dict(image_processor_type="CLIPImageProcessor", crop_size={"height": 56, "width": 56},
                       do_center_crop=True, do_convert_rgb=True, do_normalize=True, do_rescale=True, do_resize=True,
                       image_mean=[0.48145466, 0.4578275, 0.40821073], image_std=[0.26862954, 0.26130258, 0.27577711],
                       resample=3, rescale_factor=1 / 255, size={"shortest_edge": 56}),
        num_additional=1, is_old=True),
    "llava_siglip": dict(
        config=dict(text_config=dict(TEXT, model_type="qwen2", tie_word_embeddings=True),
                    vision_config=dict(VISION, model_type="siglip_vision_model", vision_use_head=False),
                    vision_feature_layer=[3], vision_feature_select_strategy="full", multimodal_projector_bias=False,
                    projector_hidden_act="gelu_pytorch_tanh"),
        processor=dict(image_processor_type="SiglipImageProcessor", do_resize=True, do_rescale=True, do_normalize=True,
                       size={"height": 56, "width": 56}),
        num_additional=0, is_old=False),
}
CASES = [
    ("one_image", True, [[0, "What is shown here?"]]),
    ("two_images", True, [[1, 2, "Compare the two pictures, please."]]),
    ("two_turns", True, [[0, "What is this?"], "A picture.", [1, "And this one?"]]),
    ("image_then_long_text", True, [[2, "Describe it. " + "The quick brown fox jumps over the lazy dog. " * 6]]),
    ("text_only", True, [["No picture at all."]]),
    ("adjacent_images", False, "Look: <image><image> and say what they are."),
]
FILES = ["rgb.png", "tall.png", "palette.png"]
# What else the processor is asked for: files, and settings in the place of the model's.
PROCESSED = {
    "llava": [(file, {}) for file in ("rgba.png", "grey8.png", "plain.bmp", "tiny.png")] +
             [(file, dict(size={"shortest_edge": 33}, crop_size={"height": 40, "width": 37}))
              for file in ("rgb.png", "tall.png", "bilevel.png")] +
             [("rgb.png", dict(size=44, crop_size=40)), ("tall.png", dict(do_resize=False)),
              ("palette.png", dict(do_center_crop=False)), ("rgb.png", dict(size={"height": 30, "width": 50}))],
    "llava_siglip": [("rgba.png", {}), ("tall.png", dict(size=20)), ("rgb.png", dict(resample=2))],
}


def image_of(file):
    """As ours decodes it: without transparency."""
    known = json.loads((IMAGES / "images.json").read_text())["images"]
    return Image.open(IMAGES / next(image["decoded"] for image in known if image["file"] == file))


def randomised(model, seed):
    """Large enough that positions, biases and the class token show."""
    random = numpy.random.default_rng(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1 and "norm" in name.lower() or "layrnorm" in name:
                mean, deviation = (1.0, 0.2) if name.endswith("weight") else (0.0, 0.2)
            elif weight.ndim == 1:
                mean, deviation = 0.0, 0.3
            elif "embed_tokens" in name or "position_embedding" in name:
                mean, deviation = 0.0, 0.5
            else:
                mean, deviation = 0.0, 1.2 * float(numpy.prod(weight.shape[1:])) ** -0.5
                deviation *= 2.0 if "q_proj" in name or "k_proj" in name or "lm_head" in name else 1.0
            values = random.standard_normal(tuple(weight.shape)) * deviation + mean
            weight.copy_(torch.from_numpy(values.astype(numpy.float32)).to(torch.bfloat16).float())


def old_name(name):
    for new, old in (("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head."),
                     ("model.vision_tower.", "vision_tower.vision_model."),
                     ("model.multi_modal_projector.", "multi_modal_projector.")):
        if name.startswith(new):
            return old + name[len(new):]
    raise ValueError(name)


def write_tokenizer(folder):
    tokenizer = json.loads((LLAMA / "tokenizer.json").read_text())
    token = dict(tokenizer["added_tokens"][-1], id=IMAGE_ID, content=IMAGE)
    tokenizer["added_tokens"].append(token)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=True))
    settings = json.loads((LLAMA / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    settings["added_tokens_decoder"][str(IMAGE_ID)] = {key: value for key, value in token.items() if key != "id"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}, indent=1))


def write_model(folder, spec, model, seed):
    config = dict(architectures=["LlavaForConditionalGeneration"], model_type="llava", image_token_index=IMAGE_ID,
                  image_seq_length=16, torch_dtype="bfloat16", bos_token_id=763, eos_token_id=[764, 767], **spec["config"])
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps(dict(bos_token_id=763, eos_token_id=[764, 767])))
    (folder / "preprocessor_config.json").write_text(json.dumps(spec["processor"], indent=1))
    (folder / "processor_config.json").write_text(json.dumps(
        dict(image_token=IMAGE, num_additional_image_tokens=spec["num_additional"], patch_size=14,
             processor_class="LlavaProcessor",
             vision_feature_select_strategy=spec["config"]["vision_feature_select_strategy"]), indent=1))
    tied = config["text_config"].get("tie_word_embeddings", False)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("position_ids") or (tied and name == "lm_head.weight"):
            continue
        tensors[old_name(name) if spec["is_old"] else name] = tensor.to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def messages_of(turns):
    def part(content):
        return {"type": "image"} if isinstance(content, int) else {"type": "text", "text": content}
    return [dict(role="assistant", content=[part(turn)]) if isinstance(turn, str) else
            dict(role="user", content=[part(content) for content in turn]) for turn in turns]


def greedy(model, ids, pixels):
    """Tokens, the gaps between the two best logits, and the first logits."""
    inputs = dict(input_ids=torch.tensor([ids]), use_cache=True)
    if pixels is not None:
        inputs["pixel_values"] = pixels
    tokens, gaps, first = [], [], None
    for _ in range(NUM_GREEDY):
        output = model(**inputs)
        logits = output.logits[0, -1]
        first = logits if first is None else first
        best = torch.topk(logits, 2).values
        gaps.append(float(best[0] - best[1]))
        tokens.append(int(logits.argmax()))
        inputs = dict(input_ids=torch.tensor([[tokens[-1]]]), past_key_values=output.past_key_values, use_cache=True)
    return tokens, gaps, first


def streamed(tokenizer, prompt, tokens):
    stream, text = DecodeStream(ids=prompt, skip_special_tokens=True), ""
    for token in tokens:
        text += stream.step(tokenizer._tokenizer, token) or ""
    return text


@torch.no_grad()
def make(name):
    spec = MODELS[name]
    models, goldens = (GOLDEN / "models" / kind / name for kind in ("models", "goldens"))
    models.mkdir(parents=True, exist_ok=True)
    goldens.mkdir(parents=True, exist_ok=True)
    for seed in range(100):
        config = LlavaConfig(image_token_index=IMAGE_ID, **spec["config"])
        config._attn_implementation = "eager"
        model = LlavaForConditionalGeneration(config).eval()
        randomised(model, seed)
        model.tie_weights()
        write_tokenizer(models)
        write_model(models, spec, model, seed)
        # From the files, so that nothing but them counts.
        model, info = LlavaForConditionalGeneration.from_pretrained(models, dtype=torch.float32, attn_implementation="eager",
                                                                    output_loading_info=True)
        assert not any(info.values()), info
        model.eval()
        kind = CLIPImageProcessor if "CLIP" in spec["processor"]["image_processor_type"] else SiglipImageProcessor
        tokenizer = AutoTokenizer.from_pretrained(models)
        processor = LlavaProcessor(kind.from_pretrained(models), tokenizer, patch_size=14, chat_template=TEMPLATE,
                                   vision_feature_select_strategy=config.vision_feature_select_strategy,
                                   num_additional_image_tokens=spec["num_additional"])
        images = [image_of(file) for file in FILES]
        arrays, cases, min_gap, distinct = {}, [], 1e9, 1e9
        for i, image in enumerate(images):
            pixels = processor.image_processor(image, return_tensors="pt").pixel_values
            arrays[f"pixel_values.{i}"] = pixels[0]
            rows = model.model.get_image_features(pixels, vision_feature_layer=config.vision_feature_layer,
                                                  vision_feature_select_strategy=config.vision_feature_select_strategy)
            arrays[f"projector.{i}"] = rows.pooler_output[0]
        for case, is_chat, content in CASES:
            messages = messages_of(content) if is_chat else None
            text = processor.apply_chat_template(messages, add_generation_prompt=True) if is_chat else content
            if is_chat:
                used = [part for turn in content if not isinstance(turn, str) for part in turn if isinstance(part, int)]
            else:
                used = [0, 1]
            add_special = not is_chat
            inputs = processor(text=text, images=[images[i] for i in used] or None, return_tensors="pt",
                               add_special_tokens=add_special)
            ids = inputs["input_ids"][0].tolist()
            tokens, gaps, logits = greedy(model, ids, inputs.get("pixel_values"))
            min_gap, distinct = min(min_gap, *gaps), min(distinct, len(set(tokens)))
            arrays[f"case.{case}.last_logits"] = logits
            arrays[f"case.{case}.greedy_gap"] = torch.tensor(gaps)
            cases.append(dict(name=case, text=text, add_special_tokens=add_special,
                              images=["images/" + FILES[i] for i in used], prompt_token_ids=ids,
                              image_token_positions=[i for i, token in enumerate(ids) if token == IMAGE_ID],
                              greedy_token_ids=tokens, text_out=tokenizer.decode(tokens, skip_special_tokens=True),
                              streamed_text=streamed(tokenizer, ids, tokens)))
            if messages:
                cases[-1]["messages"] = messages
        print(name, "seed", seed, "smallest gap", min_gap, "logits", float(logits.std()), "distinct tokens", distinct)
        if min_gap > MIN_GAP and distinct > 8:
            break
    processed = []
    for i, (file, settings) in enumerate(PROCESSED[name]):
        image = image_of(file)
        arrays[f"pixels.{i}"] = processor.image_processor(image, return_tensors="pt", **settings).pixel_values[0]
        processed.append(dict(file=file, settings=settings))
    save_file({key: value.float().contiguous().clone() for key, value in arrays.items()}, goldens / "golden.safetensors")
    golden = dict(model=name, seed=seed, reference=dict(torch=torch.__version__.split("+")[0],
                                                        transformers=transformers.__version__),
                  min_gap=min_gap, images=[dict(file="images/" + file) for file in FILES], cases=cases, processed=processed)
    (goldens / "golden.json").write_text(json.dumps(golden, indent=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[1:] or MODELS:
        make(each)
