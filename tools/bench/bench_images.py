#!/usr/bin/env python3
"""Images per second of CPU time through preprocessing on one thread, beside Pillow with numpy and, where it is installed,
torchvision: from a JPEG file's bytes to float32 pixel values of 896 x 896, in turns.

usage: bench_images.py BENCH_IMAGES [ROUNDS]"""
import io
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
from PIL import Image, ImageOps

SECONDS = 1.0
SIDE = 896
SIZES = [(640, 480), (1024, 768), (1600, 1200), (4000, 3000)]
CONFIG = {"image_processor_type": "Gemma3ImageProcessor", "do_resize": True, "do_rescale": True, "do_normalize": True,
          "rescale_factor": 1 / 255, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2, "image_seq_length": 256,
          "size": {"height": SIDE, "width": SIDE}}


def photo(width, height):
    """Smooth areas, edges and noise."""
    rng = numpy.random.default_rng(width)
    y, x = numpy.mgrid[0:height, 0:width] / height
    planes = [127 + 90 * numpy.sin(9 * x * (i + 1) + 5 * y) * numpy.cos(7 * y - i) for i in range(3)]
    image = numpy.stack(planes, -1) + rng.normal(0, 6, (height, width, 3))
    out = io.BytesIO()
    Image.fromarray(image.clip(0, 255).astype(numpy.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def with_pillow(data):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB").resize((SIDE, SIDE), Image.BILINEAR)
    values = (numpy.asarray(image, dtype=numpy.float32) - 127.5) / 127.5
    return numpy.ascontiguousarray(values.transpose(2, 0, 1))


def with_torchvision():
    try:
        import torch
        from torchvision.transforms.v2 import functional
    except ImportError:
        return None
    torch.set_num_threads(1)

    def process(data):
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        resized = functional.resize(functional.pil_to_tensor(image), [SIDE, SIDE], antialias=True)
        return (resized.to(torch.float32) - 127.5) / 127.5
    return process


def rate(process, data):
    start, count = time.process_time(), 0
    while time.process_time() - start < SECONDS:
        process(data)
        count += 1
    return count / (time.process_time() - start)


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    torchvision = with_torchvision()
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "preprocessor_config.json").write_text(json.dumps(CONFIG))
        print(f"{'JPEG':>12} {'ours/s':>9} {'Pillow/s':>9} {'torchvision/s':>14} {'ours / Pillow':>14}")
        ratios, torch_ratios = [], []
        for width, height in SIZES:
            data = photo(width, height)
            file = pathlib.Path(folder) / f"{width}.jpg"
            file.write_bytes(data)
            ours, pillow, torch = [], [], []
            for _ in range(rounds):
                done = subprocess.run([program, folder, str(SECONDS), str(file)], capture_output=True, text=True, check=True)
                ours.append(float(done.stdout))
                pillow.append(rate(with_pillow, data))
                if torchvision is not None:
                    torch.append(rate(torchvision, data))
            ratios.append(statistics.median(ours) / statistics.median(pillow))
            if torch:
                torch_ratios.append(statistics.median(ours) / statistics.median(torch))
            shown = f"{statistics.median(torch):14.1f}" if torch else f"{'-':>14}"
            print(f"{width:>7}x{height} {statistics.median(ours):9.1f} {statistics.median(pillow):9.1f} {shown} {ratios[-1]:14.2f}")
        print(f"geometric mean of ours / Pillow: {statistics.geometric_mean(ratios):.2f}")
        if torch_ratios:
            print(f"geometric mean of ours / torchvision: {statistics.geometric_mean(torch_ratios):.2f}")
        else:
            print("torchvision is skipped: this Python does not have it")


if __name__ == "__main__":
    main()
