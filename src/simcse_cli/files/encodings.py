"""Suggest the encodings that bytes may be in.

The user must choose among them, since several may give readable letters.
"""

import unicodedata
from contextlib import suppress

_HAN = (
    "的一是不了人我在有他中大上到子和你地出道也年得就那要下以生自着去之家可小心多天而能好都然日于起成事只"
    "作想看文手十用主行方又如前所本面公同三已老定分回因很此二明"
    "这来个国说们为时对会过学后里么没还发当无开见经头动两长从她样现"
    "這來個國說們為時對會過學後裡麼沒還發當無開見經頭動兩長從樣現於"
)
_KANA = "のにはをたがでてとしれさあいるなもらりっこまかすくよきんせそだえつけうめおーンスルトリ"
_HANGUL = (
    "이다는에의가을고를하은지로서한자사기도으나그어리시인라해일부스대정아전게수과있들장여만보구것없했요면제니상"
    "주원성국적문동트까더오려러음마거무진화비우중조용안경치계공세연선습모실"
)
_CYRILLIC = "оеаинтсрвлкмдпуяы"
_ARABIC = "الينمورتبةعده"
_WESTERN = "äöüßéèàçêñóáíúôâîïëœåøæãõùûò"
_CENTRAL = "ąćęłńóśźżáčéěíňřšúůýžöőüűăâîşţđ"

_SCRIPTS = {
    "cp932": (("CJK", "HIRAGANA", "KATAKANA"), _KANA),
    "gb18030": (("CJK",), _HAN),
    "big5": (("CJK",), _HAN),
    "euc_jp": (("CJK", "HIRAGANA", "KATAKANA"), _KANA),
    "cp949": (("HANGUL",), _HANGUL),
    "cp1251": (("CYRILLIC",), _CYRILLIC),
    "koi8_r": (("CYRILLIC",), _CYRILLIC),
    "cp866": (("CYRILLIC",), _CYRILLIC),
    "iso8859_5": (("CYRILLIC",), _CYRILLIC),
    "cp1252": (("LATIN",), _WESTERN),
    "cp850": (("LATIN",), _WESTERN),
    "mac_roman": (("LATIN",), _WESTERN),
    "cp1250": (("LATIN",), _CENTRAL),
    "iso8859_2": (("LATIN",), _CENTRAL),
    "cp1253": (("GREEK",), "αοιετσνηυρπκμλςάίό"),
    "cp1254": (("LATIN",), "çğıöşüâîû"),
    "cp1255": (("HEBREW",), "יוהלאתרבשמנ"),
    "cp1256": (("ARABIC",), _ARABIC),
    "iso8859_6": (("ARABIC",), _ARABIC),
    "cp874": (("THAI",), "านรอกเงมยลวดทสต"),
}
"""Each encoding with its scripts and its frequent letters.

A script is a word with which the Unicode names of letters begin. The frequent letters are those of
the languages that the encoding is for.
"""
_MOST = 4  # encodings to suggest
_LEAST_SHARE = 0.85  # of plausible letters among the characters that count
_LINES = 500  # to look at
_SHOWN = 40  # characters of the decoded line


def plausible_encodings(content: bytes) -> list[tuple[str, str]]:
    """Return likely encodings, the likeliest first, each with a line of the decoded text.

    An encoding is likely if it decodes most of the bytes to letters of its scripts. The larger the
    share of frequent letters among them, the likelier it is. Left out are

    - encodings without any frequent letter, or with less than half the share of the likeliest;
    - encodings that give the same text as one before.
    """
    # Lines of ASCII are the same in all encodings, so look only at the others.
    sample = b"\n".join(line for line in content.splitlines()[:_LINES] if not line.isascii())
    shares: dict[str, float] = {}  # of frequent letters, by the decoded text
    name_by_text: dict[str, str] = {}
    for name, (scripts, frequent) in _SCRIPTS.items():
        with suppress(UnicodeDecodeError):
            text = sample.decode(name)
            if text not in name_by_text and _share_of_letters(text, scripts) >= _LEAST_SHARE:
                name_by_text[text] = name
                shares[text] = _share_of_frequent(text, frequent)

    least = max(shares.values(), default=0) / 2
    likely = [text for text, share in shares.items() if share >= least and share > 0]
    likely.sort(key=shares.__getitem__, reverse=True)
    return [(name_by_text[text], _first_line(text)) for text in likely[:_MOST]]


def _first_line(text: str) -> str:
    return " ".join(text.split("\n")[0].split())[:_SHOWN]


def _share_of_frequent(text: str, frequent: str) -> float:
    letters = [char for char in text if char.isalpha() and not char.isascii()]
    return sum(map(frequent.__contains__, letters)) / max(1, len(letters))


def _share_of_letters(text: str, scripts: tuple[str, ...]) -> float:
    """Return the share of non-ASCII characters that are plausible letters of the scripts.

    A capital after a small letter, letters of two scripts in a word, and four accented letters in a
    row are not plausible: they appear when bytes are decoded by a wrong encoding. Punctuation,
    spaces and marks do not count, except for signs that a wrong encoding puts after Latin letters.
    """
    is_latin = scripts == ("LATIN",)
    n_plausible = n_others = 0
    previous = " "
    n_in_row = 0  # letters outside ASCII up to this one
    for char in text:
        if char.isascii():
            previous = char
            n_in_row = 0
            continue

        # Few Latin letters outside ASCII stand in a row; those of another script do, but they do
        # not follow an ASCII letter.
        n_in_row = n_in_row + 1 if char.isalpha() else 0
        if is_latin:
            is_misplaced = n_in_row > 3
        else:
            is_misplaced = previous.isalpha() and previous.isascii()
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
