#!/usr/bin/python3
"""Text recognised end to end: rendered lines, through a cluster by gRPC, read by PP-OCRv4's three models.

usage: read_text.py

det finds the lines of a page, cls says which of them stand on their heads, rec reads them. What PaddleOCR does around
its models is done here in small: normalising, boxes from a map of probabilities, cutting out, decoding. Also run with
--runtime, which asks ONNX Runtime instead of a cluster: a check of this program.
"""
import pathlib
import shutil
import sys
import tempfile

import numpy
from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import cluster  # noqa: E402
import kit  # noqa: E402

import catalogue  # noqa: E402
import compare  # noqa: E402

FONTS = pathlib.Path("/usr/share/fonts/truetype/dejavu")
LINES = (  # text, font, size, place of its left upper corner, on its head
    ("Bring your own models", "DejaVuSans.ttf", 36, (40, 30), False),
    ("and get one answer: 42", "DejaVuSerif.ttf", 32, (90, 120), True),
    ("Three lines in November 2026", "DejaVuSansMono.ttf", 28, (60, 205), False),
)
PAGE = (640, 288)  # multiples of 32, as det wants

TEXT_MIN, BOX_MIN = 0.3, 0.6  # det: a pixel of text, the mean of a box
UNCLIP = 1.5  # boxes are found too small by design
TURN_MIN = 0.9  # cls: sure enough to turn a line
HEIGHT, CLS_WIDTH, REC_WIDTH = 48, 192, 320


# ---- the page --------------------------------------------------------------------------------------------------------


def page():
    """All lines on one page, dark on a light ground that is not quite even."""
    y, x = numpy.mgrid[0:PAGE[1], 0:PAGE[0]]
    ground = 235 + 10 * numpy.sin(x / 90) * numpy.cos(y / 70)
    image = Image.fromarray(numpy.repeat(ground[:, :, None], 3, 2).astype(numpy.uint8))
    for text, font, size, place, turned in LINES:
        font = ImageFont.truetype(str(FONTS / font), size)
        left, top, right, bottom = font.getbbox(text)
        mask = Image.new("L", (right - left, bottom - top))
        ImageDraw.Draw(mask).text((-left, -top), text, 255, font)
        image.paste((25, 30, 60), place, mask.rotate(180) if turned else mask)
    return image


# ---- det -------------------------------------------------------------------------------------------------------------


def to_planes(image, mean, deviation):
    """[1, 3, height, width] of blue, green, red, normalised."""
    pixels = numpy.asarray(image, numpy.float32)[:, :, ::-1] / 255
    return ((pixels - numpy.float32(mean)) / numpy.float32(deviation)).transpose(2, 0, 1)[None].astype(numpy.float32)


def components(mask):
    """The connected sets of true pixels, as arrays of (y, x)."""
    left = set(zip(*map(list, numpy.nonzero(mask))))
    while left:
        found, border = [], [left.pop()]
        while border:
            y, x = border.pop()
            found.append((y, x))
            near = {(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)} & left
            left -= near
            border.extend(near)
        yield numpy.array(found)


def boxes(scores):
    """Lines as (left, top, right, bottom), from above."""
    made = []
    for place in components(scores > TEXT_MIN):
        (top, left), (bottom, right) = place.min(0), place.max(0) + 1
        if min(bottom - top, right - left) < 3 or scores[place[:, 0], place[:, 1]].mean() < BOX_MIN:
            continue
        width, height = right - left, bottom - top
        more = width * height * UNCLIP / (2 * (width + height))
        made.append((max(left - more, 0), max(top - more, 0), min(right + more, PAGE[0]), min(bottom + more, PAGE[1])))
    return sorted((tuple(int(round(side)) for side in box) for box in made), key=lambda box: box[1])


# ---- cls and rec -----------------------------------------------------------------------------------------------------


def strip(line, room):
    """A line 48 high in room pixels of width, grey where nothing is."""
    width = min(room, max(1, round(line.width * HEIGHT / line.height)))
    planes = to_planes(line.resize((width, HEIGHT), Image.BILINEAR), (0.5,) * 3, (0.5,) * 3)
    return numpy.pad(planes, ((0, 0), (0, 0), (0, 0), (0, room - width)))


def characters():
    """What rec's outputs stand for: nothing, the package's table, a space."""
    table = (catalogue.OCR / "ppocr_keys_v1.txt").read_text().split("\n")
    return ["", *table, " "]


def decode(probabilities, table):
    """The likeliest character of each place; repeats are one, and nothing separates them."""
    kit.expect_equal(probabilities.shape[1], len(table), "the characters of rec")
    best = probabilities.argmax(1)
    return "".join(table[c] for c, before in zip(best, [0, *best[:-1]]) if c != before)


def read(image, infer):
    """The texts of a page, from above; infer(model, array) gives the model's output."""
    scores = infer("ppocr-det", to_planes(image, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    kit.expect_equal(scores.shape, (1, 1, PAGE[1], PAGE[0]), "the shape of det's map")
    lines = [image.crop(box) for box in boxes(scores[0, 0])]
    kit.expect(lines, "det found no text")
    turned = infer("ppocr-cls", numpy.concatenate([strip(line, CLS_WIDTH) for line in lines]))
    lines = [line.rotate(180) if share[1] > TURN_MIN else line for line, share in zip(lines, turned)]
    room = max(REC_WIDTH, *(round(line.width * HEIGHT / line.height) for line in lines))
    table = characters()
    texts = [decode(places, table) for places in infer("ppocr-rec", numpy.concatenate([strip(line, room)
                                                                                       for line in lines]))]
    return texts, [bool(share[1] > TURN_MIN) for share in turned]


def check(infer):
    texts, turned = read(page(), infer)
    print(f"read: {texts}", flush=True)
    kit.expect_equal(texts, [line[0] for line in LINES], "what was read")
    kit.expect_equal(turned, [line[4] for line in LINES], "what was turned")


# ---- who runs the models ---------------------------------------------------------------------------------------------


def by_cluster(pb, channel):
    call = kit.unary(channel, "/ingot.v1.Inference/Infer", pb.InferResponse)

    def infer(name, array):
        request = pb.InferRequest(model=name)
        request.inputs.add(name="x", datatype="FP32", shape=array.shape, data=array.tobytes())
        output = call(request).outputs[0]
        kit.expect_equal(output.datatype, "FP32", f"the type of {name}'s output")
        return numpy.frombuffer(output.data, numpy.float32).reshape(output.shape)

    return infer


def by_runtime(name, array):
    with tempfile.TemporaryDirectory(prefix="ingot-models-") as folder:
        (found,), _ = compare.by_runtime(catalogue.FILES[name], [("", {"x": array})], pathlib.Path(folder))
        return next(iter(found.values()))


def a_page_is_read():
    if "--runtime" in sys.argv:
        check(by_runtime)
        return
    with tempfile.TemporaryDirectory(prefix="ingot-models-") as root:
        for name in ("ppocr-det", "ppocr-cls", "ppocr-rec"):
            where = pathlib.Path(root, name, "1")
            where.mkdir(parents=True)
            shutil.copyfile(catalogue.FILES[name], where / "model.onnx")
        with cluster.Cluster(root, workers=2) as running, running.channel() as channel:
            check(by_cluster(cluster.ingot_messages(), channel))


kit.run([a_page_is_read], None)
