"""Suggest the encodings that bytes may be in.

The user must choose among them, since several may give readable letters.
"""

import unicodedata

_SCRIPTS = {
    "gbk": ("CJK",),
    "big5": ("CJK",),
    "cp932": ("CJK", "HIRAGANA", "KATAKANA"),
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
_MOST = 4
_LEAST_SHARE = 0.85
_LINES = 500
_SHOWN = 40


def plausible_encodings(content: bytes) -> list[tuple[str, str]]:
    """Return likely encodings, the likeliest first, each with a line of the decoded text.

    They are those that decode the bytes to letters of their own script.
    """
    # Look only at lines with other characters than ASCII, which all encodings share.
    lines = [line for line in content.splitlines()[:_LINES] if not line.isascii()]
    found: list[tuple[float, str, str]] = []
    for name, scripts in _SCRIPTS.items():
        try:
            text = b"\n".join(lines).decode(name)
        except UnicodeDecodeError:
            continue
        share = _share_of_letters(text, scripts)
        if share >= _LEAST_SHARE:
            shown = " ".join(text.split("\n")[0].split())[:_SHOWN]
            found.append((round(share, 1), name, shown))

    # Sort by share; equal ones keep the order of _SCRIPTS.
    found.sort(key=lambda each: -each[0])
    return [(name, text) for _, name, text in found[:_MOST]]


def _share_of_letters(text: str, scripts: tuple[str, ...]) -> float:
    """Return the share of non-ASCII characters that are plausible letters of the scripts.

    A capital after a small letter, letters of two scripts in a word, and two accented letters in a
    row are not plausible: they appear when bytes are decoded by a wrong encoding. Punctuation,
    spaces and marks do not count, except for signs that a wrong encoding puts after Latin letters.
    """
    is_latin = scripts == ("LATIN",)
    n_own = n_others = 0
    before = " "
    for letter in text:
        if letter.isascii():
            before = letter
            continue

        # In Latin words such letters stand beside ASCII letters, in words of other scripts not.
        is_odd = letter.isupper() and before.islower()
        is_odd |= before.isalpha() and before.isascii() is not is_latin
        if letter.isalpha():
            is_own = unicodedata.name(letter, "").startswith(scripts) and not is_odd
            n_own += is_own
            n_others += not is_own
        elif not unicodedata.category(letter).startswith(("P", "Z", "M")):
            n_others += 1
        elif before.isalpha() and unicodedata.category(letter) in ("Po", "Ps", "Pi") and is_latin:
            n_others += letter not in "’…"
        before = letter
    return n_own / max(1, n_own + n_others)
