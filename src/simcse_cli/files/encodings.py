"""Suggest the encodings that bytes may be in.

The user must choose among them, since several may give readable letters.
"""

import unicodedata
from contextlib import suppress

_SCRIPTS = {
    "cp932": ("CJK", "HIRAGANA", "KATAKANA"),
    "gbk": ("CJK",),
    "big5": ("CJK",),
    "euc_jp": ("CJK", "HIRAGANA", "KATAKANA"),
    "cp949": ("HANGUL",),
    "cp1251": ("CYRILLIC",),
    "koi8_r": ("CYRILLIC",),
    "cp1252": ("LATIN",),
    "cp1250": ("LATIN",),
    "cp1253": ("GREEK",),
    "cp1254": ("LATIN",),
    "cp1255": ("HEBREW",),
    "cp1256": ("ARABIC",),
    "cp874": ("THAI",),
}
"""Encodings, and the words with which the Unicode names of their letters begin."""
_MOST = 4  # encodings to suggest
_LEAST_SHARE = 0.85  # of plausible letters among the characters that count
_LINES = 500  # to look at
_SHOWN = 40  # characters of the decoded line


def plausible_encodings(content: bytes) -> list[tuple[str, str]]:
    """Return likely encodings, the likeliest first, each with a line of the decoded text.

    An encoding is likely if it decodes most of the bytes to letters of the script it is for.
    """
    # Lines of ASCII are the same in all encodings, so look only at the others.
    sample = b"\n".join(line for line in content.splitlines()[:_LINES] if not line.isascii())
    shares: dict[str, float] = {}
    for name, scripts in _SCRIPTS.items():
        with suppress(UnicodeDecodeError):
            shares[name] = _share_of_letters(sample.decode(name), scripts)

    # Sort by share, rounded so that nearly equal ones keep the order of _SCRIPTS.
    plausible = [name for name, share in shares.items() if share >= _LEAST_SHARE]
    plausible.sort(key=lambda name: -round(shares[name], 1))
    return [(name, _first_line(sample.decode(name))) for name in plausible[:_MOST]]


def _first_line(text: str) -> str:
    return " ".join(text.split("\n")[0].split())[:_SHOWN]


def _share_of_letters(text: str, scripts: tuple[str, ...]) -> float:
    """Return the share of non-ASCII characters that are plausible letters of the scripts.

    A capital after a small letter, letters of two scripts in a word, and two accented letters in a
    row are not plausible: they appear when bytes are decoded by a wrong encoding. Punctuation,
    spaces and marks do not count, except for signs that a wrong encoding puts after Latin letters.
    """
    is_latin = scripts == ("LATIN",)
    n_plausible = n_others = 0
    previous = " "
    for char in text:
        if char.isascii():
            previous = char
            continue

        # A Latin letter outside ASCII may follow an ASCII letter, but not another such letter. A
        # letter of another script may follow such letters, but not an ASCII letter.
        is_misplaced = previous.isalpha() and (previous.isascii() != is_latin)
        is_odd = is_misplaced or (char.isupper() and previous.islower())
        if char.isalpha():
            is_plausible = unicodedata.name(char, "").startswith(scripts) and not is_odd
            n_plausible += is_plausible
            n_others += not is_plausible
        elif not unicodedata.category(char).startswith(("P", "Z", "M")):
            n_others += 1
        elif previous.isalpha() and unicodedata.category(char) in ("Po", "Ps", "Pi") and is_latin:
            n_others += char not in "’…“"  # these are usual; the last one closes German quotes
        previous = char
    return n_plausible / max(1, n_plausible + n_others)
