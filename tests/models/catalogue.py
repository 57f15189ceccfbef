"""The real and the generated models that the tests run, and seeded inputs for them.

A case is a dict of named arrays in the order of the model's inputs. Inputs have structure (stripes and noise, tones and
silence, sequences with padding): noise alone gives every row nearly the same answer.
"""
import pathlib
import subprocess
import sys

import numpy
from PIL import Image, ImageDraw, ImageFont

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = ROOT / "tests" / "clients" / "node_modules"
OCR = MODULES / "@gutenye" / "ocr-models" / "assets"
FONT = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"
VAD = MODULES / "@ricky0123" / "vad-web" / "dist"

FILES = {
    "ppocr-det": OCR / "ch_PP-OCRv4_det_infer.onnx",
    "ppocr-rec": OCR / "ch_PP-OCRv4_rec_infer.onnx",
    "ppocr-cls": OCR / "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "silero-v5": VAD / "silero_vad_v5.onnx",
    "silero-v6": VAD / "silero_vad_v6.onnx",
    "silero-legacy": VAD / "silero_vad_legacy.onnx",
}
GENERATED = ("mlp", "resnet50", "resnet50-folded", "mobilenetv2", "bert-base", "minilm")
NAMES = (*FILES, *GENERATED)

# Generated networks as the default tests have them: same operators, fewer and smaller. TINY is for scalar kernels.
SMALL = ("--layers", "2", "--image", "96", "--vocab", "1000")
TINY = ("--layers", "1", "--image", "64", "--vocab", "1000")
FULL = ()


def model_file(name, folder, size=SMALL):
    """The model's file; a generated one is made in folder."""
    if name in FILES:
        return FILES[name]
    path = folder / f"{name}.onnx"
    if not path.exists():
        subprocess.run([sys.executable, ROOT / "bench" / "models" / "make.py", folder, name, *size], check=True)
    return path


# ---- inputs ----------------------------------------------------------------------------------------------------------


def images(rows, height, width, seed, channels=3):
    """Stripes of random direction under noise, in [-1, 1]."""
    random = numpy.random.RandomState(seed)
    y, x = numpy.mgrid[0:height, 0:width]
    made = []
    for _ in range(rows):
        across, down, phase, noise = random.uniform(-0.6, 0.6), random.uniform(-0.6, 0.6), *random.uniform(0, 1, 2)
        waves = [numpy.sin(across * x + down * y + 3 * phase + c) for c in range(channels)]
        made.append((1 - noise) * numpy.array(waves) + noise * random.uniform(-1, 1, (channels, height, width)))
    return numpy.array(made, numpy.float32)


def pages(rows, height, width, seed):
    """Lines of text, as det sees them: without text its probabilities are all nothing."""
    random = numpy.random.RandomState(seed)
    made = []
    for _ in range(rows):
        image = Image.new("RGB", (width, height), tuple(random.randint(200, 256, 3)))
        draw, y = ImageDraw.Draw(image), 8
        while y < height - 24:
            size = int(random.randint(16, 40))
            text = "".join(map(chr, random.randint(ord("a"), ord("z") + 1, max(3, width // size))))
            draw.text((int(random.randint(4, 20)), y), text, tuple(random.randint(0, 90, 3)),
                      ImageFont.truetype(FONT, size))
            y += 2 * size
        pixels = numpy.asarray(image, numpy.float32)[:, :, ::-1] / 255
        made.append(((pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)).transpose(2, 0, 1))
    return numpy.array(made, numpy.float32)


def sound(rows, samples, seed):
    """A gliding tone that comes and goes under noise, as voices do."""
    random = numpy.random.RandomState(seed)
    t = numpy.arange(samples) / 16000
    made = []
    for _ in range(rows):
        pitch, loud = random.uniform(90, 300), random.uniform(0.05, 0.6)
        tone = sum(numpy.sin(2 * numpy.pi * k * (pitch * t + 40 * t * t)) / k for k in range(1, 9))
        made.append(loud * (1 + numpy.sin(2 * numpy.pi * 4 * t)) * tone / 4 + 0.01 * random.standard_normal(samples))
    return numpy.array(made, numpy.float32)


def tokens(rows, length, seed, vocab, padded=0):
    """Rows of length tokens, each followed by padded places that the mask leaves out."""
    random = numpy.random.RandomState(seed)
    ids = random.randint(1, vocab, (rows, length)).astype(numpy.int64)
    kinds = (numpy.arange(length) >= random.randint(1, length + 1, (rows, 1))).astype(numpy.int64)
    blank = numpy.zeros((rows, padded), numpy.int64)
    return {"input_ids": numpy.concatenate([ids, blank], 1),
            "attention_mask": numpy.concatenate([numpy.ones_like(ids), blank], 1),
            "token_type_ids": numpy.concatenate([kinds, blank], 1)}


def silero_inputs(name, rows, samples, rate, seed):
    """A chunk of sound and a state as after other chunks."""
    random = numpy.random.RandomState(seed)
    chunk = {"input": sound(rows, samples, seed)}
    rate = numpy.array(rate, numpy.int64)
    if name == "silero-legacy":
        h, c = (numpy.float32(random.uniform(-0.8, 0.8, (2, rows, 64))) for _ in "hc")
        return {**chunk, "sr": rate, "h": h, "c": c}
    return {**chunk, "state": numpy.float32(random.uniform(-0.8, 0.8, (2, rows, 128))), "sr": rate}


def cases(name, size=SMALL):
    """(description, inputs) of a model of that size: several shapes and batch sizes."""
    full = size == FULL
    if name == "mlp":
        return [(f"batch {n}", {"input": images(n, 28, 28, n, 1).reshape(n, 784)}) for n in (1, 3, 16, 33)]
    if name in GENERATED[1:4]:
        side = 224 if full else int(size[size.index("--image") + 1])
        return [(f"batch {n}", {"input": images(n, side, side, n)}) for n in ((1, 4) if full else (1, 3))]
    if name in ("bert-base", "minilm"):
        vocab, made = (30522 if full else 1000), []
        for length, rows in ((16, 1), (16, 5), (64, 1), (64, 2), (128, 1), (128, 2)):
            made.append((f"{rows} x {length} tokens", tokens(rows, length, length + rows, vocab)))
        made.append(("3 x 64 tokens, 23 of them padding", tokens(3, 41, 7, vocab, 23)))
        return made
    if name == "ppocr-cls":
        return [(f"batch {n}", {"x": images(n, 48, 192, n)}) for n in (1, 6)]
    if name == "ppocr-rec":
        shapes = ((1, 320), (3, 160), (1, 64), (2, 96)) + (((6, 320), (1, 960)) if full else ())
        return [(f"{n} x 48 x {w}", {"x": images(n, 48, w, w + n)}) for n, w in shapes]
    if name == "ppocr-det":
        shapes = ((1, 160, 256), (1, 96, 64), (2, 64, 96)) + (((1, 640, 640), (1, 736, 1280)) if full else ())
        return [(f"{n} x {h} x {w}", {"x": pages(n, h, w, h + w + n)}) for n, h, w in shapes]
    return [(f"{n} x {samples} samples of {rate} Hz", silero_inputs(name, n, samples, rate, n + samples + rate))
            for n, samples, rate in silero_shapes(name)]


def silero_shapes(name):
    """(rows, samples, rate): a chunk has a fixed length, in the newer releases with samples of the one before."""
    if name == "silero-legacy":
        return [(n, samples, rate) for rate, samples in ((16000, 1536), (16000, 512), (8000, 768)) for n in (1, 3)]
    return [(n, samples, rate) for rate, samples in ((16000, 512), (16000, 576), (8000, 256)) for n in (1, 3)]
