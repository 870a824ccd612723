#!/usr/bin/env python3
"""Random preprocessor_config.json and mm_processor_kwargs: the values that Troupe makes of an image against those of transformers.

  image_processors.py [--count N] [--seed N] [--only INDEX]

Each case is a processor's class, fields, an image and one of the two backends of transformers; build/release/tests/decode_images
(or $TROUPE_DECODE_IMAGES) answers for Troupe. All values must be equal, bit for bit. Printed are what Troupe refuses and
transformers takes, as each must be something that is really not supported, and why transformers refuses what Troupe takes
(a field that is null has its default here). A case is made of seed and index alone."""
import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

import numpy
import transformers
from PIL import Image

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity(50)
ROOT = pathlib.Path(__file__).resolve().parents[2]
CLASSES = {"Gemma3ImageProcessor": "gemma3", "SiglipImageProcessor": "siglip", "CLIPImageProcessor": "clip",
           "LlavaImageProcessor": "llava"}


def side(rng):
    return rng.choice([1, 7, 14, 16, 28, 31, 56, rng.randint(1, 70)])


def sizes(rng):
    return rng.choice([lambda: {"height": side(rng), "width": side(rng)}, lambda: {"height": 28, "width": 28},
                       lambda: {"shortest_edge": side(rng)}, lambda: side(rng), lambda: {"longest_edge": side(rng)},
                       lambda: {"shortest_edge": 20, "longest_edge": side(rng)}, lambda: {"max_height": 30, "max_width": 40},
                       lambda: {"height": side(rng)}, lambda: [side(rng), side(rng)], lambda: None])()


def numbers(rng):
    return rng.choice([lambda: [0.5, 0.5, 0.5], lambda: [0.48145466, 0.4578275, 0.40821073], lambda: 0.4, lambda: 1,
                       lambda: [rng.uniform(0.05, 1) for _ in range(3)], lambda: [0.3], lambda: [0.3, 0.4], lambda: None])()


FIELDS = {
    "do_resize": lambda rng: rng.random() < 0.8, "size": sizes, "default_to_square": lambda rng: rng.random() < 0.5,
    "resample": lambda rng: rng.choice([0, 2, 3, 3, 2, 1, 4, 5, None]), "do_center_crop": lambda rng: rng.random() < 0.5,
    "crop_size": sizes, "do_rescale": lambda rng: rng.random() < 0.8,
    "rescale_factor": lambda rng: rng.choice([1 / 255, 1 / 127.5, 0.5, 1, 0.00392156862745098, rng.uniform(0.001, 2), None]),
    "do_normalize": lambda rng: rng.random() < 0.8, "image_mean": numbers, "image_std": numbers,
    "do_convert_rgb": lambda rng: rng.choice([True, False, None]), "do_pad": lambda rng: rng.choice([False, False, None, True]),
    "do_pan_and_scan": lambda rng: rng.random() < 0.7, "pan_and_scan_min_crop_size": lambda rng: rng.choice([1, 8, 20, None]),
    "pan_and_scan_max_num_crops": lambda rng: rng.choice([1, 2, 4, 6]),
    "pan_and_scan_min_ratio_to_activate": lambda rng: rng.choice([1.0, 1.2, 1.5, 0]),
    "data_format": lambda rng: rng.choice(["channels_first", "channels_first", "channels_last", None]),
    "input_data_format": lambda rng: None, "image_seq_length": lambda rng: 4, "processor_class": lambda rng: "Gemma3Processor",
}
PAN_AND_SCAN = [name for name in FIELDS if "pan_and_scan" in name]


def draw_fields(rng, kind, share):
    names = [name for name in FIELDS if kind == "Gemma3ImageProcessor" or name not in PAN_AND_SCAN or rng.random() < 0.03]
    return {name: FIELDS[name](rng) for name in names if rng.random() < share}


def draw(seed, index):
    rng = random.Random(f"{seed} {index}")
    kind = rng.choice(list(CLASSES))
    fields = {"image_processor_type": kind + rng.choice(["", "Fast"]), **draw_fields(rng, kind, rng.choice([0.1, 0.3, 0.6]))}
    kwargs = draw_fields(rng, kind, 0.15) if rng.random() < 0.3 else {}
    for name in ("image_seq_length", "processor_class", "default_to_square"):
        kwargs.pop(name, None)
    width, height = rng.choice([lambda: (side(rng), side(rng)), lambda: (rng.randint(1, 200), rng.randint(1, 200))])()
    pixels = numpy.random.default_rng(rng.getrandbits(64)).integers(0, 256, (height, width, 3), numpy.uint8)
    return fields, kwargs, Image.fromarray(pixels), rng.choice(["torchvision", "pil"])


def of_transformers(fields, kwargs, image, backend):
    """Values in order, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "preprocessor_config.json").write_text(json.dumps(fields))
        model_type = CLASSES[fields["image_processor_type"].removesuffix("Fast")]
        (pathlib.Path(folder) / "config.json").write_text(json.dumps({"model_type": model_type}))
        try:
            processor = transformers.AutoImageProcessor.from_pretrained(folder, backend=backend)
            found = processor(images=[image], **kwargs)["pixel_values"]
            found = [numpy.asarray(each, numpy.float32) for each in found]
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
    found = [each if each.ndim == 4 else each[None] for each in found]
    return [part for each in found for part in each], None


def of_troupe(requests):
    program = os.environ.get("TROUPE_DECODE_IMAGES", str(ROOT / "build/release/tests/decode_images"))
    text = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([program], input=text, capture_output=True, text=True, timeout=600, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def difference(expected, answer, path):
    shapes = [list(part.shape) for part in expected]
    if answer["shapes"] != shapes:
        return f"shapes {answer['shapes']} instead of {shapes}"
    values = numpy.fromfile(path, numpy.float32)
    wanted = numpy.concatenate([part.ravel() for part in expected])
    if (values == wanted).all():
        return None
    return f"{(values != wanted).sum()} of {values.size} values differ, by up to {abs(values - wanted).max():.3g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    indices = range(options.count) if options.only is None else [options.only]
    counts, refusals, lenient = collections.Counter(), collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        cases, requests = [], []
        for index in indices:
            fields, kwargs, image, backend = draw(options.seed, index)
            path = pathlib.Path(folder) / f"{index}.png"
            image.save(path)
            requests.append({"file": str(path), "processor": fields, "backend": backend})
            if kwargs:
                requests[-1]["kwargs"] = kwargs
            cases.append((index, fields, kwargs, image, backend, path))
        for (index, fields, kwargs, image, backend, path), answer in zip(cases, of_troupe(requests)):
            expected, error = of_transformers(fields, kwargs, image, backend)
            if "error" in answer:
                counts["refused by both" if expected is None else "refused"] += 1
                if expected is not None:
                    refusals[answer["error"]] += 1
                continue
            if expected is None:
                counts["refused by transformers"] += 1
                lenient[error.splitlines()[0]] += 1
                continue
            what = difference(expected, answer, f"{path}.f32")
            counts["equal" if what is None else "different"] += 1
            if what is not None:
                print(f"case {index}: {what}\n  {backend}, {image.size}, {json.dumps(fields)} {json.dumps(kwargs)}")
    for text, count in sorted(refusals.items()):
        print(f"refused {count}: {text}")
    for text, count in sorted(lenient.items()):
        print(f"refused by transformers {count}: {text}")
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return counts["different"] != 0


if __name__ == "__main__":
    sys.exit(main())
