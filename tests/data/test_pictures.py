"""Pixels are what a file shows, in whatever mode it keeps them; what shows nothing is named."""

import dataclasses
import io
import shutil
import struct
import unicodedata
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import refused
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from lookalikes import declared
from PIL import Image
from timm.data import ImageDataset
from timm.utils import natural_key
from torchvision.datasets import ImageFolder

from rrcm.core.errors import ConfigError, DataError
from rrcm.core.labels import UNKNOWN, shifted
from rrcm.data import image_folder
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import Fit
from rrcm.serving import upload

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (6, 5, 3), dtype=np.uint8)  # [H, W, C]
RGB, GREY = Fit(shape=(3, 6, 5)), Fit(shape=(1, 6, 5))


def saved(picture: Image.Image, kind: str = "PNG", **options) -> io.BytesIO:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    file.seek(0)
    return file


def read(picture: Image.Image, fit: Fit = RGB, kind: str = "PNG", **options) -> np.ndarray:
    """Pixels of a picture that was written and read, as [H, W, C]."""
    found = pictures.read(saved(picture, kind, **options), fit, name="a picture")

    assert found.dtype == np.uint8 and found.shape == fit.shape and found.flags.c_contiguous
    return found.transpose(1, 2, 0)


# Modes.


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_colours_are_those_of_the_file(kind: str):
    assert (read(Image.fromarray(COLOURS), kind=kind) == COLOURS).all()


def test_grey_is_luma_of_colours_and_three_times_itself():
    """Golden: ITU-R 601-2, L = 0.299 R + 0.587 G + 0.114 B, as PIL documents it."""
    luma = COLOURS @ np.array([0.299, 0.587, 0.114])
    grey = Image.fromarray(COLOURS[..., 0])

    assert np.abs(read(Image.fromarray(COLOURS), GREY)[..., 0] - luma).max() <= 0.51
    assert (read(grey, GREY)[..., 0] == COLOURS[..., 0]).all()
    assert (read(grey) == COLOURS[..., :1]).all()


def test_transparent_pixels_show_white():
    alpha = RNG.integers(0, 256, (6, 5, 1), dtype=np.uint8)
    alpha[0, :2, 0] = 0, 255
    over = COLOURS * (alpha / 255) + 255 * (1 - alpha / 255)

    found = read(Image.fromarray(np.concatenate([COLOURS, alpha], axis=2)))

    assert np.abs(found - over).max() <= 1
    assert (found[0, 0] == 255).all() and (found[0, 1] == COLOURS[0, 1]).all()
    grey = np.concatenate([COLOURS[..., :1], alpha], axis=2)
    assert np.abs(read(Image.fromarray(grey), GREY) - over[..., :1]).max() <= 1


@pytest.mark.parametrize(("depth", "row"), [(1, "0f"), (2, "00ff"), (4, "0000ffff")])
@pytest.mark.parametrize("clear", [0, 1])
def test_a_transparent_grey_shows_white_or_is_refused(depth: int, row: str, clear: int):
    """PIL scales pixels of 2 and 4 bits to 8, and not the grey that is transparent."""

    def part(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", 8, 8, depth, 0, 0, 0, 0)
    rows = zlib.compress(bytes.fromhex("00" + row) * 8)
    whole = b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header)
    whole += part(b"tRNS", struct.pack(">H", 0)) * clear + part(b"IDAT", rows) + part(b"IEND", b"")
    if clear and depth > 1:
        with refused(DataError, "a picture: a transparent colour of other than eight bits"):
            pictures.read(io.BytesIO(whole), Fit(shape=(1, 8, 8)), name="a picture")
        return

    found = pictures.read(io.BytesIO(whole), Fit(shape=(1, 8, 8)), name="a picture")

    assert found[0, 0].tolist() == [255 * clear] * 4 + [255] * 4


@few
@given(st.integers(0, 65535))
def test_sixteen_bits_are_scaled_and_not_clipped(value: int):
    """White of 65535 is white of 255: the nearest of the two to each."""
    picture = Image.fromarray(np.full((6, 5), value, dtype=np.uint16))

    for kind in ("PNG", "TIFF"):
        assert abs(int(read(picture, GREY, kind)[0, 0, 0]) * 257 - value) <= 128
        assert len({*read(picture, RGB, kind)[0, 0]}) == 1


def tiff(bits: int, pixels: bytes, sign: int = 1) -> io.BytesIO:
    """A file of 2 x 2 grey pixels, uncompressed, as TIFF 6.0 describes it."""
    tags = {256: 2, 257: 2, 258: bits, 259: 1, 262: 1, 273: 8, 277: 1, 278: 2, 279: len(pixels)}
    tags |= {339: sign}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    start = 8 + len(pixels)
    head = struct.pack("<2sHI", b"II", 42, start) + pixels
    return io.BytesIO(head + struct.pack("<H", len(tags)) + entries + bytes(4))


def test_white_is_the_largest_value_of_the_bits_that_a_file_has():
    """4,095 of twelve bits, two of which share three bytes; 65,535 of sixteen."""
    fit = Fit(shape=(1, 2, 2))
    for bits, data in ((12, "fff800fff000"), (16, "ffff0080ffff0000"), (8, "ff80ff00")):
        found = pictures.read(tiff(bits, bytes.fromhex(data)), fit, name="it")

        assert found.ravel().tolist() == [255, 128, 255, 0], bits
    for bits in (8, 16, 32):  # signed
        with refused(DataError, "it: pixels are signed, and do not say which"):
            pictures.read(tiff(bits, bytes(bits // 2), sign=2), fit, name="it")
    with refused(DataError, "it: pixels of more than sixteen bits"):
        pictures.read(tiff(32, bytes(16)), fit, name="it")


def test_fractions_have_no_white():
    with refused(DataError, "a picture: pixels are fractions"):
        read(Image.fromarray(np.ones((6, 5), dtype=np.float32)), GREY, "TIFF")
    deep = Image.fromarray(np.full((6, 5), 9, dtype=np.uint16))
    with refused(DataError, "a picture: sixteen bits of which 0 is white; save it"):
        read(deep, GREY, "TIFF", tiffinfo={262: 0})


def test_pictures_are_upright():
    """EXIF says what was done to the picture, from 1, nothing, to 8, a quarter turn."""
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    picture, exif = Image.fromarray(COLOURS), Image.Exif()
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        turned = picture.transpose(undo[orientation]) if orientation > 1 else picture

        assert (read(turned, exif=exif) == COLOURS).all()


def test_pictures_as_stored_are_those_of_timm(tmp_path: Path):
    """To the last bit, with an EXIF orientation, which neither timm nor torchvision applies."""
    from timm.data import create_transform

    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.repeat(COLOURS, 9, axis=0)).save(tmp_path / "a.jpg", exif=exif)
    transform = create_transform((3, 8, 8), mean=(0, 0, 0), std=(1, 1, 1), crop_pct=0.9)
    wanted = transform(Image.open(tmp_path / "a.jpg").convert("RGB"))
    fit = Fit(shape=(3, 8, 8), resize="crop", ratio=0.9, interpolation="bilinear", upright=False)

    for found in (
        pictures.read(tmp_path / "a.jpg", fit),
        pictures.pixels(Image.open(tmp_path / "a.jpg"), fit, name="it"),
        upload.pixels((tmp_path / "a.jpg").read_bytes(), fit)[0],
    ):
        assert torch.equal(torch.from_numpy(found) / 255, wanted)
    turned = pictures.read(tmp_path / "a.jpg", dataclasses.replace(fit, upright=True))
    assert not torch.equal(torch.from_numpy(turned) / 255, wanted)


# Sizes.


def test_another_size_is_refused_where_it_must_be_exact():
    with refused(DataError, "a picture: 5 x 6 pixels, but the model takes 6 x 5"):
        read(Image.fromarray(COLOURS), Fit(shape=(3, 5, 6)))


@few
@given(
    size=st.tuples(st.integers(8, 90), st.integers(8, 90)),
    side=st.integers(8, 40),
    ratio=st.sampled_from([0.875, 0.9, 0.95, 1.0]),
    interpolation=st.sampled_from(["bicubic", "bilinear"]),
)
def test_a_crop_is_that_of_timm(size, side, ratio, interpolation):
    """To the last bit: its transform of a picture for evaluation."""
    from timm.data import create_transform

    picture = Image.fromarray(RNG.integers(0, 256, (*size, 3), dtype=np.uint8))
    transform = create_transform(
        (3, side, side), interpolation=interpolation, mean=(0, 0, 0), std=(1, 1, 1), crop_pct=ratio
    )
    fit = Fit(shape=(3, side, side), resize="crop", ratio=ratio, interpolation=interpolation)

    found = pictures.pixels(picture, fit, name="a picture")

    assert torch.equal(torch.from_numpy(found) / 255, transform(picture))


def test_a_thread_of_pixels_is_not_cropped():
    with refused(DataError, "long.png: 2000000 x 1 pixels are too oblong to crop"):
        pictures.pixels(
            Image.new("L", (2_000_000, 1)), Fit(shape=(1, 224, 224), resize="crop"), name="long.png"
        )


def test_rules_that_are_none_are_refused():
    for changes, words in (
        ({"resize": "corp"}, "'corp' is none of exact, crop, squash. Did you mean 'crop'?"),
        ({"interpolation": "lanczos"}, "resize: 'lanczos' is none of bicubic, bilinear"),
        ({"ratio": 0.0}, "resize: the ratio of a crop is in (0, 1], got 0"),
        ({"ratio": 1.5}, "resize: the ratio of a crop is in (0, 1], got 1.5"),
    ):
        with refused(ConfigError, words):
            Fit(shape=(3, 8, 8), **changes)


# What is no picture.


GOOD = {kind: saved(Image.fromarray(COLOURS), kind).read() for kind in ("PNG", "JPEG", "GIF")}


NO_PICTURES = [
    (b"", "not a picture"),
    (b"no picture", "not a picture"),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 6\n", "not a picture"),
    (GOOD["PNG"][:50], "a damaged picture"),
    (GOOD["JPEG"][:-40], "a damaged picture"),
    (declared(5, 6), "a damaged picture"),
    (declared(0, 6), "a picture"),
    (declared(60_000, 60_000), "more than 89,478,485 pixels"),
    (declared(10_000, 10_000), "more than 89,478,485 pixels"),
]


def test_what_is_no_picture_is_named(tmp_path: Path):
    path = tmp_path / "odd.png"
    for content, words in NO_PICTURES:
        path.write_bytes(content)
        with refused(DataError, f"{path}: ", words):
            pictures.read(path, RGB)


@pytest.mark.parametrize("kind", GOOD)
@few
@given(
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1)
)
def test_damaged_bytes_are_a_picture_or_an_error_in_one_line(kind: str, damage):
    content = bytearray(GOOD[kind])
    for place, value in damage:
        content[int(place * len(content))] = value
    try:
        found = pictures.read(io.BytesIO(content), Fit(shape=(3, 6, 5), resize="squash"), name="it")
    except DataError as error:
        assert str(error).startswith("it: ") and "\n" not in str(error)
    else:
        assert found.shape == (3, 6, 5)


# Folders.


def fill(root: Path, *names: str, broken: tuple[str, ...] = ()) -> None:
    for value, name in enumerate((*names, *broken)):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in broken:
            path.write_bytes(GOOD["PNG"][:50])
        else:
            Image.new("L", (5, 6), value).save(path)


def folder(root: Path, classes: Collection[str] = "012", **changes) -> image_folder.Folder:
    options = {"classes": list(classes), "named": False, "labels": None, "strict": False}
    return image_folder.folder(root, GREY, **options | changes)


def test_a_folder_for_each_class_in_the_order_of_their_names(tmp_path: Path):
    fill(tmp_path, "cat/1.png", "ant/deep/2.JPG", "bee/0.png", "ant/1.png")

    found = folder(tmp_path)

    assert found.files == ["ant/1.png", "ant/deep/2.JPG", "bee/0.png", "cat/1.png"]
    assert found.split.idx.tolist() == [0, 1, 2, 3]
    assert found.split.labels.tolist() == [0, 0, 1, 2]
    assert found.split.classes == ("ant", "bee", "cat") and found.split.max_value == 255
    assert found.split.images[:, 0, 0, 0].tolist() == [3, 1, 2, 0] and found.left_out == []


def test_the_order_of_folders_is_that_of_torchvision_or_timm_and_said_where_they_differ(tmp_path):
    """timm's ignores the case of letters and knows numbers (its `natural_key`)."""
    fill(tmp_path, "Late 10/1.png", "Late 9/1.png", "healthy/1.png")
    for natural, order in ((False, "Late 10, Late 9, healthy"), (True, "healthy, Late 9, Late 10")):
        found = folder(tmp_path, natural=natural)

        assert ", ".join(found.split.classes) == order
        assert sorted(order.split(", "), key=natural_key if natural else None) == order.split(", ")
        (said,) = found.passed_over
        assert f"of {('torchvision', 'timm')[natural]}; in that of" in said and order in said
    assert folder(tmp_path, classes=["Late 9", "healthy", "Late 10"], named=True).passed_over == []
    fill(tmp_path / "numbers", *(f"{number}/1.png" for number in range(11)))
    found = folder(tmp_path / "numbers", [*map(str, range(11))])
    assert found.split.labels[2] == 10 and found.files[2] == "10/1.png"
    assert "in the order of their numbers; in that of torchvision" in found.passed_over[0]
    fill(tmp_path / "plain", "a/1.png", "b/1.png", "c/1.png")
    assert folder(tmp_path / "plain").passed_over == []


def test_names_of_the_outputs_say_which_is_which(tmp_path: Path):
    """Whatever the order of the folders, and with fewer folders than outputs."""
    fill(tmp_path, "ant/1.png", "cat/1.png")

    found = folder(tmp_path, classes=["cat", "bee", "ant"], named=True)

    assert found.split.labels.tolist() == [2, 0] and found.split.classes == ("cat", "bee", "ant")


def test_labels_from_a_file(tmp_path: Path):
    """Names or numbers of outputs; a picture that is not listed is unknown, without a file all."""
    fill(tmp_path / "bare", "b.png", "a.png")
    assert folder(tmp_path / "bare").split.labels.tolist() == [UNKNOWN, UNKNOWN]
    fill(tmp_path, "a.png", "b/c.png", "d.png", "e.png")
    shutil.rmtree(tmp_path / "bare")
    (tmp_path / "labels.csv").write_text("label,file\nant,a.png\n2,b/c.png\n0,d.png\n")

    found = folder(
        tmp_path, labels=tmp_path / "labels.csv", classes=["cat", "ant", "bee"], named=True
    )

    assert found.split.labels.tolist() == [1, 2, 0, UNKNOWN]


SPREADSHEETS = {  # kind: how labels of a/0.png and b/1.png are written
    "semicolons": "File;Label\r\na/0.png;2\r\nb/1.png;0\r\n",
    "tabs": "label\tfile\n2\ta/0.png\n0\tb/1.png\n",
    "BOM": "\ufefffile,label\r\na/0.png,2\r\n\r\nb/1.png,0\r\n",
    "spaces": 'file, label\n"a/0.png"," 2"\n b/1.png , 0 \n',
    "floats": "file,label,score\na/0.png,2.0,0.5\nb/1.png,0.0,\n",
    "decimal commas": "file;label\na/0.png;2,0\nb/1.png;0,0\n",
    "Windows": "file,label\na\\0.png,2\nb\\1.png,0\n",
    "a disk of Windows": "file,label\nC:\\data\\new\\a\\0.png,2\nC:\\data\\new\\b\\1.png,0\n",
    "another root": "file,label\n/home/x/data/a/0.png,2\n/home/x/data/b/1.png,0\n",
    "dots": "file,label\na/0.png,2\n./a/../b//1.png,0\n",
    "a dot first": "file,label\n./a/0.png,2\nb/1.png,0\n",
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("kind", SPREADSHEETS)
def test_labels_are_read_as_spreadsheets_write_them(tmp_path: Path, kind: str, encoding: str):
    fill(tmp_path, "a/0.png", "b/1.png")
    (tmp_path / "labels.csv").write_bytes(SPREADSHEETS[kind].encode(encoding))

    found = folder(tmp_path, labels=tmp_path / "labels.csv")

    roots = {"a disk of Windows": "C:/data/new/", "another root": "/home/x/data/"}
    said = f"folders before the paths in {tmp_path}/labels.csv: {roots.get(kind)}"
    assert found.split.labels.tolist() == [2, 0]
    assert (said in found.passed_over) == (kind in roots)


def test_labels_of_two_folders_are_not_of_one(tmp_path: Path):
    """What stands before a path is the same in all rows: train/0.png is not val/0.png."""
    fill(tmp_path, "0.png", "1.png")
    labels = tmp_path / "labels.csv"
    for rows in ("train/0.png,2\nval/1.png,0", "0.png,2\nval/1.png,0"):
        labels.write_text(f"file,label\n{rows}\n")
        with refused(DataError, "labels.csv:3: there is no picture val/1.png"):
            folder(tmp_path, labels=labels)


@pytest.mark.parametrize(
    ("names", "shown", "outputs"),
    [
        (["+1", "-1"], ["1", "-1"], [0, 1]),
        (["-2", "-1", "+1", "+2"], ["1", "2", "-1", "-2"], [2, 3, 1, 0]),
        (["0.5", "1", "1.5"], ["1,5", "0,5", "1.0"], [2, 0, 1]),
        (["2e3", "1e3"], ["1.00E+03", "2000"], [1, 0]),
    ],
    ids=["signs", "signs of four", "fractions", "exponents"],
)
def test_names_that_are_numbers_are_found_as_a_spreadsheet_shows_them(
    tmp_path: Path, names: list[str], shown: list[str], outputs: list[int]
):
    """And no such label is the number of an output."""
    files = [f"{place}.png" for place in range(len(shown))]
    fill(tmp_path, *files)
    labels = tmp_path / "labels.csv"
    rows = [f"{file};{label}" for file, label in zip(files, shown, strict=True)]
    labels.write_text("\n".join(["file;label", *rows]))

    assert folder(tmp_path, names, labels=labels).split.labels.tolist() == outputs
    labels.write_text("file;label\n0.png;3")
    with refused(DataError, f"'3' is no class of the {len(names)}"):
        folder(tmp_path, names, labels=labels)


def test_a_label_of_no_class_is_not_of_the_class_none(tmp_path: Path):
    fill(tmp_path, "0.png")
    labels = tmp_path / "labels.csv"
    labels.write_text("file,label\n0.png,scratch\n")
    with refused(DataError, "'scratch' is no class of the 2"):
        folder(tmp_path, ["None", "dent"], labels=labels)


@pytest.mark.parametrize("natural", [False, True])
def test_folders_in_folders_are_classes_as_their_library_takes_them(tmp_path: Path, natural: bool):
    """And it is said: the other library would take the others."""
    files = [f"{site}/{kind}/{n}.png" for site in "ab" for kind in ("yes", "No") for n in "01"]
    fill(tmp_path, *files)
    if natural:
        wanted = dict(ImageDataset(str(tmp_path)).reader.samples)
    else:
        wanted = dict(ImageFolder(tmp_path).samples)

    found = folder(tmp_path, "01", natural=natural)

    labels = dict(zip(found.files, found.split.labels.tolist(), strict=True))
    assert {str(tmp_path / file): label for file, label in labels.items()} == wanted
    (said,) = found.passed_over
    assert (
        "timm takes the innermost, No, yes" in said
        or "torchvision takes the outermost, a, b" in said
    )


@pytest.mark.parametrize("named", [False, True])
def test_labels_that_count_from_one_are_said_to(tmp_path: Path, named: bool):
    """In a table and as folders; names of the outputs that are these numbers are taken."""
    fill(tmp_path, "1/a.png", "2/a.png", "3/a.png")
    labels = tmp_path / "labels.csv"
    labels.write_text("file,label\n1/a.png,1\n2/a.png,3\n3/a.png,2\n")
    if named:
        assert folder(tmp_path, "123", named=True).split.labels.tolist() == [0, 1, 2]
        for typed in ("1/a.png,1\n2/a.png,3\n3/a.png,2", "1/a.png,1.0\n2/a.png,03\n3/a.png,2"):
            labels.write_text(f"file,label\n{typed}\n")
            assert folder(tmp_path, "123", labels=labels).split.labels.tolist() == [0, 2, 1]
        labels.write_text("file,label\n1/a.png,1\n2/a.png,3\n3/a.png,2\n")
        found = folder(tmp_path, ["2.0", "1.0", "3.0"], labels=labels)
        assert found.split.labels.tolist() == [1, 2, 0]
        labels.write_text("file,label\n1/a.png,1.000\n")  # a thousand, or one
        with refused(DataError, "'1.000' is no class of the 3"):
            folder(tmp_path, "123", labels=labels)
        labels.write_text("file,label\n1/a.png,0\n")  # of an output, where all names are numbers
        with refused(DataError, "'0' is no class of the 3"):
            folder(tmp_path, "123", labels=labels)
        return

    said = "no label is 0: if they count from 1, subtract 1 from each, or give their names"
    for options in ({"labels": labels}, {}):
        with refused(DataError, "'3' is no class of the 3", said):
            folder(tmp_path, **options)
    labels.write_text("file,label\n1/a.png,0\n2/a.png,3\n")
    with refused(DataError, "'3' is no class of the 3 that the model has; give their names"):
        folder(tmp_path, labels=labels)


@pytest.mark.parametrize(
    ("labels", "outputs", "words"),
    [
        ([1, 2, 3], 3, "subtract 1 from each"),
        ([UNKNOWN, 3], 3, "subtract 1 from each"),
        ([10, 12, 11], 3, "are 10 too high: subtract 10 from each"),
        ([10, 12], 3, ""),  # one of them may be a slip
        ([10, 12], 5, ""),  # so are 8, 9 and 10
        ([0, 3], 3, ""),
        ([0, 1], 3, ""),
        ([UNKNOWN], 3, ""),
    ],
)
def test_the_one_number_that_labels_are_too_high_by(labels, outputs: int, words: str):
    said = shifted(labels, outputs)

    assert words in said and bool(said) == bool(words)


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path):
    """And the others keep their numbers, which their noise is of."""
    fill(tmp_path, "a.png", "c.png", broken=("b.png", "d.png"))
    Image.new("L", (9, 9)).save(tmp_path / "e.png")

    found = folder(tmp_path)

    assert found.files == ["a.png", "c.png"] and found.split.idx.tolist() == [0, 2]
    assert [line.partition(":")[0] for line in found.left_out] == ["b.png", "d.png", "e.png"]
    assert "damaged" in found.left_out[0] and "9 x 9 pixels" in found.left_out[2]
    assert found.split.images[:, 0, 0, 0].tolist() == [0, 1]
    with refused(DataError, "b.png: a damaged picture"):
        folder(tmp_path, strict=True)


def test_hidden_files_and_what_is_no_picture_are_passed_over_and_counted(tmp_path: Path):
    fill(
        tmp_path, "ant/1.png", "ant/.ipynb_checkpoints/1-checkpoint.png", "ant/._1.png", ".t/2.png"
    )
    for name in ("b.txt", "a.CR2", *(f"c{i}.csv" for i in range(5))):
        (tmp_path / name).touch()

    found = folder(tmp_path, classes=["ant"], named=True)

    assert found.files == ["ant/1.png"]
    assert found.passed_over == [
        "hidden files and folders passed over: 3",
        "no pictures that can be read: 7 files (a.CR2, b.txt, c0.csv, c1.csv, c2.csv, …)",
    ]


def test_class_folders_may_be_links(tmp_path: Path):
    fill(tmp_path / "elsewhere", "1.png", "deep/2.png")
    fill(tmp_path / "in", "bee/1.png")
    (tmp_path / "in/ant").symlink_to(tmp_path / "elsewhere")

    found = folder(tmp_path / "in", classes=["ant", "bee"], named=True)

    assert found.files == ["ant/1.png", "ant/deep/2.png", "bee/1.png"]
    (tmp_path / "in/cat").symlink_to(tmp_path / "in")
    with refused(DataError, "in/cat: a link to", "would count twice"):
        folder(tmp_path / "in")


def test_accents_are_the_same_however_they_are_written(tmp_path: Path):
    """A label that is typed, and a file or folder of a disk that decomposes them."""
    typed, kept = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    fill(tmp_path, f"{kept}/{kept}.png")
    (tmp_path / "labels.csv").write_text(f"file,label\n{typed}/{typed}.png,{typed}\n")

    for labels in (None, tmp_path / "labels.csv"):
        found = folder(tmp_path, classes=["tea", typed], named=True, labels=labels)

        assert found.split.labels.tolist() == [1] and found.files == [f"{kept}/{kept}.png"]


def test_a_picture_may_be_listed_twice_only_with_one_label(tmp_path: Path):
    fill(tmp_path, "1.png", "2.png")
    labels = tmp_path / "labels.csv"
    labels.write_text("file,label\n1.png,2\n\n1.png,002\n2.png,0\n")
    assert folder(tmp_path, labels=labels).split.labels.tolist() == [2, 0]

    labels.write_text("file,label\n1.png,2\n\n2.png,0\n1.png,1\n")
    with refused(DataError, "labels.csv:5: 1.png is of class '1' here, but of '2' in line 2"):
        folder(tmp_path, labels=labels)


def test_a_name_of_two_outputs_is_no_label_but_their_numbers_are(tmp_path: Path):
    fill(tmp_path, "1.png")
    labels = tmp_path / "labels.csv"
    options = {"classes": ["crane", "ant", "crane"], "named": True, "labels": labels}
    labels.write_text("file,label\n1.png,2\n")
    assert folder(tmp_path, **options).split.labels.tolist() == [2]

    labels.write_text("file,label\n1.png,crane\n")
    with refused(DataError, "labels.csv:2: 'crane' is the name of the outputs 0, 2; give a number"):
        folder(tmp_path, **options)


@pytest.mark.parametrize(
    ("names", "changes", "words"),
    [
        ([], {}, "no pictures here, only .bmp, .gif"),
        (["ant/1.png", "bee/1.png"], {}, "2 folders for a model of 3 classes; give the names"),
        (["ant/1.png", "bee/1.png"], {}, "--classes, first that of a background class if it has"),
        (["ant/1.png", "1.png"], {}, "1.png lies beside folders"),
        (["7/1.png"], {}, "'7' is no class of the 3"),
        (["aunt/1.png"], {"classes": ["ant", "bee"], "named": True}, "Did you mean 'ant'?"),
        (["1.png"], {"labels": "file,label\n2.png,0\n"}, ":2: there is no picture 2.png"),
        (["1.png"], {"labels": "file,label\n1.png,9\n"}, ":2: '9' is no class of the 3"),
        (["1.png"], {"labels": "name,label\n1.png,0\n"}, "not a CSV file with the columns"),
        (["1.png"], {"labels": "file,label,Label\n1.png,0,1\n"}, "column 'label' comes twice"),
        (["1.png"], {"labels": "file,label,label\n1.png,0,1\n"}, "column 'label' comes twice"),
        (["1.png"], {"labels": "file,label\n"}, "labels.csv: no labels in it"),
        (["1.png"], {"labels": None}, "labels.csv: not found"),
    ],
)
def test_folders_that_say_too_little_are_refused(tmp_path: Path, names, changes, words):
    fill(tmp_path, *names)
    if "labels" in changes:
        path = tmp_path / "labels.csv"
        if changes["labels"] is not None:
            path.write_text(changes["labels"])
        changes = {"labels": path}

    with refused(DataError, words):
        folder(tmp_path, **changes)
