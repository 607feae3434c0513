"""Damage to files: what a cut copy, a bad disk, another program or a careless hand does to bytes, text and JSON."""

import io
import json
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from safetensors.numpy import load, save

Damage = Callable[[random.Random, bytes], bytes]

NUMBERS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1",
    "0",
    "1e308",
    "9" * 400,
    "9" * 5000,
    "0x10",
    "1_0",
    "",
)
TEXTS = (
    "",
    " ",
    "\x1b[31mred\x1b[0m\x07",
    "é" * 3,
    "a" * 100_000,
    "../../x",
    "[/bold] [red]",
    "$\\frac{",
    "=1+1",
    "\u202egnp",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    1e308,
    10**30,
    "",
    "x",
    [],
    [None],
    {},
    {"x": 1},
    [[1]],
    *TEXTS,
)

OTHER_FILES = (
    *(
        b"",
        b"\n",
        b"\0" * 512,
        b"{",
        b"[]",
        b"3",
        b"null",
        b"[" * 100_000,
        b"9" * 5000,
        b"\x80\x04N.",
        b"PK\x03\x04",
    ),
    *(b"<html>Not Found</html>", b"version https://git-lfs.github.com/spec/v1\n"),
)


def cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 20))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def insert_bytes(rng: random.Random, data: bytes) -> bytes:
    extra = rng.choice(
        (
            b"\0",
            b"\xff\xfe",
            b"\xed\xa0\x80",
            b"\r",
            b"\x1b[2J",
            b'"',
            b"\t",
            b",",
            b"\n\n",
            rng.randbytes(9),
        )
    )
    place = rng.randrange(len(data) + 1)
    return data[:place] + extra * rng.choice((1, 1, 50)) + data[place:]


def drop_bytes(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.randrange(1, 200) :]


def zero_bytes(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    length = min(rng.randrange(1, 5000), len(data) - start)
    return data[:start] + bytes(length) + data[start + length :]


def replace_file(rng: random.Random, data: bytes) -> bytes:
    return rng.choice((*OTHER_FILES, rng.randbytes(300)))


def change_lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[at])
        case 2:
            lines.insert(at, rng.choice(TEXTS).encode("utf-8", "surrogatepass"))
        case 3:
            rng.shuffle(lines)
        case _:
            lines[at] = lines[at].replace(rng.choice((b"\t", b",", b" ")), b"")
    return b"\n".join(lines)


def change_number(rng: random.Random, data: bytes) -> bytes:
    """Replace one number; raise IndexError where there is none."""
    found = rng.choice([*re.finditer(rb"\d+(\.\d+)?", data)])
    return data[: found.start()] + rng.choice(NUMBERS).encode() + data[found.end() :]


def change_json(rng: random.Random, data: bytes) -> bytes:
    """Give one place of a JSON value, or of one line of JSON Lines, another value, or take it away."""
    lines = [data] if data[:2] in (b"{\n", b"[\n") or b"\n{" not in data else data.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except ValueError:
        return flip_bits(rng, data)
    places = _places(value)
    if not places:
        return replace_file(rng, data)
    parent, key = rng.choice(places)
    if rng.random() < 0.2:
        del parent[key]
    else:
        parent[key] = rng.choice(VALUES)
    lines[at] = json.dumps(value).encode()
    if rng.random() < 0.1:
        lines[at] = lines[at].replace(b":", b":" + b"[" * 2000, 1)
    return b"\n".join(lines)


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else []
    )
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


ANY: tuple[Damage, ...] = (cut, flip_bits, insert_bytes, drop_bytes, zero_bytes, replace_file)
LINES: tuple[Damage, ...] = (*ANY, change_lines, change_number)
JSON: tuple[Damage, ...] = (*ANY, change_number, change_json, change_json, change_json, change_json)


def change_arrays(rng: random.Random, data: bytes) -> bytes:
    """Give one array of a safetensors, npy or npz file values that are not finite, or another shape, type or name."""
    if data[:6] == b"\x93NUMPY":
        out = io.BytesIO()
        np.save(out, _changed(rng, np.load(io.BytesIO(data))))
        return out.getvalue()
    is_zip = data[:2] == b"PK"
    arrays = dict(np.load(io.BytesIO(data))) if is_zip else load(data)
    name = rng.choice(sorted(arrays))
    kept = arrays.pop(name)
    if rng.random() < 0.85:
        arrays[name if rng.random() < 0.9 else name + "x"] = _changed(rng, kept)
    if is_zip:
        out = io.BytesIO()
        np.savez(out, **arrays)
        return out.getvalue()
    length = int.from_bytes(data[:8], "little")
    return save(arrays, metadata=json.loads(data[8 : 8 + length]).get("__metadata__"))


def _changed(rng: random.Random, array: np.ndarray) -> np.ndarray:
    array = array.copy()
    match rng.randrange(8):
        case 0 | 1 | 2 if array.dtype.kind == "f" and array.size:
            array.flat[rng.randrange(array.size)] = rng.choice((np.nan, np.inf, -np.inf, 3e38))
        case 3:
            array = array[: len(array) // 2] if array.ndim else array
        case 4:
            array = array.astype(rng.choice((np.float64, np.int8, np.float16, np.bool_)))
        case 5:
            array = array.reshape(-1)
        case 6:
            array = np.zeros_like(array)
        case _:
            array = array[..., :0] if array.ndim else array
    return np.ascontiguousarray(array)


ARRAYS: tuple[Damage, ...] = (*ANY, change_arrays, change_arrays, change_arrays, change_arrays)
