"""A WordNet database of a few synsets, in the official file format with correct byte offsets."""

from collections.abc import Sequence
from pathlib import Path

_FILE_ENDINGS = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_LICENCE = "".join(
    f"  {line} This line stands for the licence at the head of the file.  \n"
    for line in range(1, 4)
)

SYNSETS: dict[str, list[tuple[str, ...]]] = {
    "n": [
        ("car", "auto", "motorcar"),
        ("dog", "domestic_dog"),
        ("child", "kid"),
        ("man_of_the_world", "sophisticate"),
        ("city", "metropolis"),
        ("work", "labor"),
        ("china", "porcelain"),
        ("China", "Cathay"),
        ("setting", "scene"),
        ("light", "illumination"),
    ],
    "v": [
        ("run", "jog"),
        ("eat", "devour"),
        ("give_up", "quit"),
        ("work", "toil"),
        ("set", "place"),
        ("jump", "leap"),
    ],
    "a": [
        ("big", "large"),
        ("galore(ip)", "abundant"),
        ("light", "weightless"),
        ("pretty", "beautiful"),
    ],
    "r": [("quickly", "rapidly")],
}
EXCEPTIONS = {
    "n": "children child\n",
    "v": "ran run\nrunning run\njogged jog\njogging jog\nate eat\neaten eat\nsetting set\nleapt "
    "leap\n",
    "a": "bigger big\nbiggest big\nprettier pretty\nprettiest pretty\n",
    "r": "",
}
# Sense key and count: work is oftener a noun in this world, light oftener an adjective.
COUNTS = (
    "work%1:04:00:: 1 20\nwork%2:41:00:: 1 10\nlight%3:00:00:: 1 9\nlight%1:19:00:: 1 "
    "3\nset%2:35:00:: 1 8\nquickly%4:02:00:: 1 7\nbeautiful%5:00:00:pretty:00 1 4\n"
)


def write_wordnet(folder: Path) -> Path:
    """Write the database into ``folder`` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for pos, ending in _FILE_ENDINGS.items():
        data, offsets = _data_file(pos, SYNSETS[pos])
        (folder / f"data.{ending}").write_bytes(data)
        (folder / f"index.{ending}").write_text(_LICENCE + _index_lines(pos, SYNSETS[pos], offsets))
        (folder / f"{ending}.exc").write_text(EXCEPTIONS[pos])
    (folder / "cntlist.rev").write_text(COUNTS)
    return folder


def _data_file(pos: str, synsets: Sequence[Sequence[str]]) -> tuple[bytes, list[int]]:
    data, offsets = _LICENCE.encode(), []
    for words in synsets:
        offsets.append(len(data))
        pairs = " ".join(f"{word} 0" for word in words)
        data += f"{len(data):08d} 03 {pos} {len(words):02x} {pairs} 000 | a meaning  \n".encode()
    return data, offsets


def _index_lines(pos: str, synsets: Sequence[Sequence[str]], offsets: Sequence[int]) -> str:
    places: dict[str, list[int]] = {}
    for words, offset in zip(synsets, offsets, strict=True):
        for word in words:
            places.setdefault(word.partition("(")[0].lower(), []).append(offset)
    lines = []
    for lemma, found in sorted(places.items()):
        numbers = " ".join(f"{offset:08d}" for offset in found)
        lines.append(f"{lemma} {pos} {len(found)} 2 @ ~ {len(found)} 0 {numbers}  \n")
    return "".join(lines)
