#!/usr/bin/env python3
"""Random images of every format and mode against Pillow: the same pixels bit for bit, whole, cut off and resized.

TROUPE_DECODE_IMAGES is the program decode_images.
Usage: image_check.py [SEED|random [COUNT]].
TROUPE_KEEP_IMAGES is a folder for those that differ.
"""
import io
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import zlib

import numpy
from PIL import Image, ImageOps

ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def expected_image(data):
    """What vLLM gives to an image processor."""
    image = Image.open(io.BytesIO(data))
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode == "RGB":
        return image
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=image.split()[3])
    return white


def png_chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


class Images:
    """Draws images as the bytes of a file."""

    def __init__(self, rng):
        self.rng = rng
        self.numpy_rng = numpy.random.default_rng(rng.getrandbits(64))

    def size(self):
        rng = self.rng
        return rng.choice([rng.randint(1, 20), rng.randint(1, 150)]), rng.choice([rng.randint(1, 20), rng.randint(1, 150)])

    def samples(self, height, width, channels, levels=256):
        """Smooth, with edges and noise."""
        y, x = numpy.mgrid[0:height, 0:width]
        planes = []
        for _ in range(channels):
            a, b, c = self.numpy_rng.uniform(-0.2, 0.2, 3)
            plane = 0.5 + 0.5 * numpy.sin(a * x + b * y + 10 * c)
            plane += (self.numpy_rng.random((height, width)) - 0.5) * self.rng.choice([0, 0.1, 1])
            left, top = self.rng.randint(0, width), self.rng.randint(0, height)
            plane[top:top + height // 3, left:left + width // 3] = self.rng.random()
            planes.append(plane)
        return (numpy.stack(planes, -1).clip(0, 1) * (levels - 1)).round().astype(numpy.int64)

    def image(self, mode, size=None):
        width, height = size or self.size()
        if mode in ("L", "RGB", "RGBA", "CMYK", "LA"):
            pixels = self.samples(height, width, len(mode)).astype(numpy.uint8)
            if mode in ("RGBA", "LA") and self.rng.random() < 0.5:
                pixels[..., -1] = self.numpy_rng.choice([0, 255], (height, width))
            return Image.fromarray(pixels.squeeze(-1) if mode == "L" else pixels, mode)
        colors = self.rng.randint(2, 256)
        if mode == "P":
            return self.image("RGB", (width, height)).quantize(colors)
        return self.image("L", (width, height)).convert(mode)

    def exif(self):
        exif = Image.Exif()
        if self.rng.random() < 0.7:
            exif[274] = self.rng.randint(0, 9)
        exif[305] = "a program"
        return exif.tobytes()

    def save(self, image, **options):
        if self.rng.random() < 0.4 and options["format"] in ("JPEG", "PNG", "WEBP"):
            options["exif"] = self.exif()
        out = io.BytesIO()
        image.save(out, **options)
        return out.getvalue()

    def make_jpeg(self):
        rng = self.rng
        mode = rng.choice(["L", "RGB", "RGB", "RGB", "CMYK"])
        options = {"quality": rng.randint(5, 100), "progressive": rng.random() < 0.4, "optimize": rng.random() < 0.4}
        if mode == "RGB":
            options["keep_rgb"] = rng.random() < 0.2
            if not options["keep_rgb"]:
                options["subsampling"] = rng.choice([0, 1, 2])
        if rng.random() < 0.2:
            options["restart_marker_blocks"] = rng.randint(1, 5)
        return self.save(self.image(mode), format="JPEG", **options)

    def make_png(self):
        mode = self.rng.choice(["1", "L", "LA", "P", "RGB", "RGBA"])
        image = self.image(mode)
        options = {"optimize": self.rng.random() < 0.5}
        if mode == "P" and self.rng.random() < 0.6:
            options["transparency"] = (self.rng.randint(0, 20) if self.rng.random() < 0.5
                                       else self.numpy_rng.bytes(self.rng.randint(1, 30)))
        if mode == "L" and self.rng.random() < 0.5:
            options["transparency"] = self.rng.randint(0, 255)
        return self.save(image, format="PNG", **options)

    def make_raw_png(self):
        """What Pillow does not write: every depth, Adam7, short palettes, transparent colours."""
        rng = self.rng
        color_type, depths = rng.choice([(0, [1, 2, 4, 8, 16]), (2, [8, 16]), (3, [1, 2, 4, 8]), (4, [8, 16]), (6, [8, 16])])
        depth = rng.choice(depths)
        channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color_type]
        width, height = self.size()
        samples = self.samples(height, width, channels, 1 << depth)
        if depth == 16 and rng.random() < 0.5:
            samples //= rng.choice([100, 200, 256])
        chunks = b""
        if color_type == 3:
            colors = rng.randint(1, 1 << depth)
            chunks += png_chunk(b"PLTE", self.numpy_rng.bytes(3 * colors))
            if rng.random() < 0.5:
                chunks += png_chunk(b"tRNS", self.numpy_rng.bytes(rng.randint(1, colors)))
        elif color_type == 0 and rng.random() < 0.6:
            chunks += png_chunk(b"tRNS", struct.pack(">H", int(rng.choice([0, 1, samples.flat[0], 255, 256 % (1 << depth)]))))
        elif color_type == 2 and rng.random() < 0.5:
            chunks += png_chunk(b"tRNS", struct.pack(">3H", *samples[0, 0].tolist()))
        interlaced = rng.random() < 0.5
        rows = b""
        for x0, y0, dx, dy in ADAM7 if interlaced else [(0, 0, 1, 1)]:
            part = samples[y0::dy, x0::dx]
            if part.size == 0:
                continue
            for row in part.reshape(part.shape[0], -1):
                bits = ((row[:, None] >> numpy.arange(depth - 1, -1, -1)) & 1).astype(numpy.uint8)
                rows += b"\0" + numpy.packbits(bits.reshape(-1)).tobytes()
        exif = png_chunk(b"eXIf", self.exif()[6:])
        before, after = rng.choice([(b"", b""), (exif, b""), (b"", exif)])
        packed = zlib.compress(rows)
        cut = rng.randint(0, len(packed))
        header = struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, interlaced)
        return (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + chunks + before + png_chunk(b"IDAT", packed[:cut]) +
                png_chunk(b"IDAT", packed[cut:]) + after + png_chunk(b"IEND", b""))

    def make_webp(self):
        rng = self.rng
        mode = rng.choice(["RGB", "RGBA"])
        options = {"lossless": rng.random() < 0.4, "quality": rng.randint(1, 100), "method": rng.randint(0, 4),
                   "exact": rng.random() < 0.5}
        image = self.image(mode)
        if rng.random() < 0.3:
            options |= {"save_all": True, "append_images": [self.image(mode, image.size)], "duration": 50}
        return self.save(image, format="WEBP", **options)

    def make_gif(self):
        rng = self.rng
        image = self.image(rng.choice(["P", "P", "L", "1", "RGB", "RGBA"]))
        options = {"interlace": rng.random() < 0.5, "optimize": rng.random() < 0.5}
        if image.mode in ("P", "L") and rng.random() < 0.5:
            options["transparency"] = rng.randint(0, 255)
        if rng.random() < 0.3:
            options |= {"save_all": True, "append_images": [self.image(image.mode, image.size)]}
        data = bytearray(self.save(image, format="GIF", **options))
        if rng.random() < 0.3:  # a frame that is smaller than the canvas, or reaches beyond it
            struct.pack_into("<HH", data, 6, image.width + rng.randint(0, 9), image.height + rng.randint(0, 9))
            header = struct.pack("<BHHHH", 0x2C, 0, 0, image.width, image.height)
            at = data.find(header)
            if at > 0:
                struct.pack_into("<HH", data, at + 1, rng.randint(0, 12), rng.randint(0, 12))
        return bytes(data)

    def make_tiff(self):
        rng = self.rng
        mode = rng.choice(["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
        compressions = [None, "tiff_lzw", "tiff_adobe_deflate", "packbits"]
        if mode == "1":
            compressions += ["group3", "group4", "tiff_ccitt"]
        if mode in ("L", "RGB"):
            compressions += ["jpeg", "jpeg"]
        options = {"compression": rng.choice(compressions)}
        if options["compression"] == "jpeg":
            options["quality"] = rng.randint(5, 100)
        if rng.random() < 0.5:
            options["tiffinfo"] = {274: rng.randint(1, 8)}
        elif rng.random() < 0.3:
            options |= {"strip_size": rng.randint(1, 1000)}
        image = self.image(mode)
        if rng.random() < 0.2:
            options |= {"save_all": True, "append_images": [self.image(mode)]}
        try:
            return self.save(image, format="TIFF", **options)
        except OSError:  # a few Pillow cannot compress
            return self.save(image, format="TIFF", **options | {"compression": None})

    def make_raw_tiff(self):
        """What Pillow does not write: 16 bits, few bits, premultiplied alpha, planes, tiles, both byte orders."""
        rng = self.rng
        photometric, depths, extras = rng.choice([(0, [1, 2, 4, 8, 16], [()]), (1, [1, 2, 4, 8, 16], [()]), (1, [8], [(2,)]),
                                                  (2, [8, 16], [(), (), (0,), (1,), (2,)]), (3, [1, 2, 4, 8], [()]), (5, [8, 16], [()])])
        depth, extra = rng.choice(depths), rng.choice(extras)
        channels = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4}[photometric] + len(extra)
        width, height = self.size()
        order = rng.choice("<>")
        pixels = self.samples(height, width, channels, 1 << depth)
        if depth == 16 and photometric < 2 and rng.random() < 0.5:
            pixels //= rng.choice([100, 200, 256])
        separate = channels > 1 and depth == 8 and not extra and photometric == 2 and rng.random() < 0.4
        planes = [pixels[..., i:i + 1] for i in range(channels)] if separate else [pixels]
        compression = rng.choice([1, 8])
        tile = rng.choice([None, (16, 16), (32, 16)]) if depth >= 8 and compression == 8 else None
        blocks = []
        for plane in planes:
            if tile:
                padded = numpy.pad(plane, ((0, -height % tile[1]), (0, -width % tile[0]), (0, 0)))
                parts = [padded[y:y + tile[1], x:x + tile[0]] for y in range(0, height, tile[1]) for x in range(0, width, tile[0])]
            else:
                parts = [plane[y:y + 7] for y in range(0, height, 7)]
            for part in parts:
                if depth == 16:
                    data = part.astype(order + "u2").tobytes()
                else:
                    rows = part.reshape(part.shape[0], -1)
                    bits = ((rows[..., None] >> numpy.arange(depth - 1, -1, -1)) & 1).astype(numpy.uint8)
                    data = b"".join(numpy.packbits(row.reshape(-1)).tobytes() for row in bits)
                blocks.append(zlib.compress(data) if compression == 8 else data)
        tags = {256: (3, [width]), 257: (3, [height]), 258: (3, [depth] * channels), 259: (3, [compression]), 262: (3, [photometric]),
                277: (3, [channels]), 284: (3, [2 if separate else 1]), 274: (3, [rng.randint(1, 8)])}
        if extra:
            tags[338] = (3, list(extra))
        if photometric == 3:
            tags[320] = (3, self.numpy_rng.integers(0, 65536, 3 << depth).tolist())
        if tile:
            tags |= {322: (3, [tile[0]]), 323: (3, [tile[1]]), 324: (4, []), 325: (4, [len(block) for block in blocks])}
        else:
            tags |= {278: (3, [7]), 273: (4, []), 279: (4, [len(block) for block in blocks])}
        return self.tiff(order, tags, blocks)

    def tiff(self, order, tags, blocks):
        """The offsets of the blocks, tag 273 or 324, are filled in."""
        at, offsets = 8, []
        for block in blocks:
            offsets.append(at)
            at += len(block) + len(block) % 2
        tags = {tag: (kind, values or offsets) for tag, (kind, values) in tags.items()}
        directory, more, behind = b"", b"", at + 2 + 12 * len(tags) + 4
        for tag, (kind, values) in sorted(tags.items()):
            data = struct.pack(f"{order}{len(values)}{'H' if kind == 3 else 'I'}", *values)
            directory += struct.pack(order + "HHI", tag, kind, len(values))
            if len(data) <= 4:
                directory += data.ljust(4, b"\0")
            else:
                directory += struct.pack(order + "I", behind + len(more))
                more += data + b"\0" * (len(data) % 2)
        head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, at)
        return (head + b"".join(block + b"\0" * (len(block) % 2) for block in blocks) +
                struct.pack(order + "H", len(tags)) + directory + b"\0\0\0\0" + more)

    def make_bmp(self):
        return self.save(self.image(self.rng.choice(["1", "L", "P", "RGB", "RGBA"])), format="BMP")

    def make_raw_bmp(self):
        rng = self.rng
        bits = rng.choice([1, 4, 8, 16, 16, 32, 32, "rle4", "rle8"])
        rle = isinstance(bits, str)
        depth = int(bits[3:]) if rle else bits
        width, height = self.size()
        masks, compression = b"", 0
        if rle:
            compression = 2 if depth == 4 else 1
        elif depth >= 16 and rng.random() < 0.7:
            compression = 3
            masks = struct.pack("<3I", *rng.choice([(0xF800, 0x7E0, 0x1F), (0x7C00, 0x3E0, 0x1F)] if depth == 16 else [
                (0xFF0000, 0xFF00, 0xFF), (0xFF000000, 0xFF0000, 0xFF00), (0xFF000000, 0xFF00, 0xFF), (0, 0, 0)]))
        palette = self.numpy_rng.bytes(4 << depth) if depth <= 8 else b""
        pixels = self.rle_pixels(width, height, depth) if rle else b"".join(
            self.row(width, depth).ljust((width * depth + 31) // 32 * 4, b"\0") for _ in range(height))
        top_down = rng.random() < 0.5
        offset = 14 + 40 + len(masks) + len(palette)
        return (b"BM" + struct.pack("<IHHI", offset + len(pixels), 0, 0, offset) +
                struct.pack("<IiiHHIIiiII", 40, width, -height if top_down else height, 1, depth, compression,
                            len(pixels), 2835, 2835, 0, 0) + masks + palette + pixels)

    def row(self, width, depth):
        values = self.numpy_rng.integers(0, 1 << depth, width)
        if depth >= 8:
            return values.astype(f"<u{depth // 8}").tobytes()
        bits = ((values[:, None] >> numpy.arange(depth - 1, -1, -1)) & 1).astype(numpy.uint8)
        return numpy.packbits(bits.reshape(-1)).tobytes()

    def rle_pixels(self, width, height, depth):
        out = b""
        rng = self.rng
        for _ in range(height):
            x = 0
            while x < width and rng.random() < 0.98:
                count = min(rng.randint(1, 40), width - x, 255)
                if rng.random() < 0.5 or count < 3:
                    out += bytes([count, rng.randrange(256)])
                else:
                    data = self.row(count, depth)
                    out += bytes([0, count]) + data + b"\0" * (len(data) & 1)
                x += count
            out += b"\0\0"
        return out + b"\0\1"

    def make(self):
        return getattr(self, "make_" + self.rng.choice(
            ["jpeg", "jpeg", "png", "raw_png", "raw_png", "webp", "webp", "gif", "gif", "bmp", "raw_bmp", "tiff", "raw_tiff"]))()


def data_of(request):
    return pathlib.Path(request["file"]).read_bytes()


def tiff_directory_is_cut(data):
    """Whether a TIFF file ends within its first directory, or before the values that this one refers to."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[:4])
    if order is None or len(data) < 8:
        return False
    at = struct.unpack_from(order + "I", data, 4)[0]
    if at + 2 > len(data):
        return True
    end = at + 2 + 12 * struct.unpack_from(order + "H", data, at)[0] + 4
    if end > len(data):
        return True
    for entry in range(at + 2, end - 4, 12):
        kind, count, place = struct.unpack_from(order + "HII", data, entry + 2)
        size = count * {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 7: 1}[kind]
        if size > 4 and place + size > len(data):
            return True
    return False


def png_checksum_is_cut(data):
    """Whether a PNG file ends within the checksum of a chunk."""
    at = 8
    while data.startswith(b"\x89PNG") and at + 8 <= len(data):
        end = at + 8 + struct.unpack_from(">I", data, at)[0]
        if end <= len(data) < end + 4:
            return True
        at = end + 4
    return False


def main():
    seed = sys.argv[1] if len(sys.argv) > 1 else "random"
    seed = random.randrange(2 ** 32) if seed == "random" else int(seed)
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    print(f"seed {seed}")
    rng = random.Random(seed)
    images = Images(rng)
    with tempfile.TemporaryDirectory() as folder:
        requests, expected = [], []
        for i in range(count):
            data = images.make()
            cut = rng.random() < 0.1
            if cut:
                data = data[:rng.randrange(len(data))]
            path = pathlib.Path(folder) / f"image{i}"
            path.write_bytes(data)
            request = {"file": str(path), "cut": cut}
            try:
                image = expected_image(data)
                request["rgb"] = Image.open(io.BytesIO(data)).mode == "RGB"
            except Exception as error:
                image = error
            if isinstance(image, Image.Image) and rng.random() < 0.3:
                request |= {"resize": list(images.size()), "resample": rng.randrange(6)}
                image = image.resize(request["resize"], request["resample"])
            requests.append(request)
            expected.append(image)
        done = subprocess.run([os.environ["TROUPE_DECODE_IMAGES"]], input="".join(json.dumps(r) + "\n" for r in requests),
                              capture_output=True, text=True, check=True)
        num_different = 0
        for request, image, line in zip(requests, expected, done.stdout.splitlines(), strict=True):
            result = json.loads(line)
            problem = None
            # Pillow takes metadata behind the pixels whose checksum is cut off, libpng does not.
            if request["cut"] and png_checksum_is_cut(data_of(request)):
                continue
            if isinstance(image, Exception) or "error" in result:
                # In truncated PNGs Pillow requires complete metadata after the pixels, and libpng the pixels' checksum.
                if data_of(request).startswith(b"\x89PNG") and ("Truncated File Read" in str(image) or (
                        request["cut"] and result.get("error", "").endswith("the data end before the image does"))):
                    continue
                # Of a cut directory Pillow takes the entries that are left, which is enough if they lead to uncompressed
                # pixels; libtiff, and so Troupe, refuses such files.
                if "error" in result and tiff_directory_is_cut(data_of(request)):
                    continue
                if not isinstance(image, Exception) or "error" not in result:
                    problem = f"Pillow: {image!r}, Troupe: {result}"
            elif image.size != (result["width"], result["height"]):
                problem = f"{image.size} instead of {result}"
            elif result["rgb"] != request["rgb"]:
                problem = "its mode is " + ("RGB" if request["rgb"] else "not RGB")
            else:
                pixels = numpy.frombuffer(pathlib.Path(request["file"] + ".rgb").read_bytes(), numpy.uint8).astype(int)
                steps = numpy.abs(pixels - numpy.asarray(image).reshape(-1))
                if steps.any():
                    problem = f"{numpy.count_nonzero(steps)} of {steps.size} values differ, by up to {steps.max()}"
            if problem:
                num_different += 1
                data = data_of(request)
                keep = os.environ.get("TROUPE_KEEP_IMAGES")
                if keep:
                    (pathlib.Path(keep) / pathlib.Path(request["file"]).name).write_bytes(data)
                print(f"{pathlib.Path(request['file']).name} ({data[:4]!r}, {len(data)} bytes{request.get('resize', '')} {request.get('resample', '')}): {problem}")
        num_errors = sum(isinstance(image, Exception) for image in expected)
        print(f"{count} images, {num_errors} of them damaged, {num_different} differ")
        sys.exit(num_different != 0 or count - num_errors < count // 2)


if __name__ == "__main__":
    main()
