"""A coarse guess of a line's language or script: enough to see that a corpus is mixed, no more.

Texts in the Latin alphabet are told apart by function words of seven languages, all others by script.
"""

import unicodedata
from collections import Counter
from functools import lru_cache

from simcse_cli.data.text import words

_FUNCTION_WORDS = {
    "English": "the of and to is that was for with his they are from this have not but had you which were",
    "German": "der und das nicht ist ein eine ich wir mit auf für von zu dem sich auch wird einen sind",
    "French": "les des est une dans que qui pour pas sur nous vous avec sont cette du au été mais ses",
    "Spanish": "los las una que por para con del está como más pero sus fue este muy esta hay y el",
    "Italian": "il che di non una per sono della con gli nel alla più anche è ha questo dei ma lo",
    "Dutch": "het een van niet zijn dat met voor op de hij ook naar maar wordt aan bij deze heeft uit",
    "Portuguese": "não uma os que com para do da em foi mais dos são como mas pelo ao à sua ele",
}
_LANGUAGES_OF: dict[str, list[str]] = {}
for _language, _list in _FUNCTION_WORDS.items():
    for _word in _list.split():
        _LANGUAGES_OF.setdefault(_word, []).append(_language)
MIN_FUNCTION_WORDS = 3


def guess_language(text: str) -> str | None:
    """Return a language such as ``English``, a script such as ``Cyrillic``, or None when it is not clear.

    A language needs three different function words of its own, and twice as many as the next language.
    """
    if not text.isascii():
        scripts = Counter(_script(character) for character in text if character.isalpha())
        script, count = scripts.most_common(1)[0] if scripts else ("Latin", 0)
        if script != "Latin" and 2 * count > scripts.total():
            return script
    found = _LANGUAGES_OF.keys() & words(text)
    hits = Counter(language for word in found for language in _LANGUAGES_OF[word])
    ranked = [*hits.most_common(2), ("", 0), ("", 0)]
    (best, n_best), (_, n_next) = ranked[:2]
    return best if n_best >= MIN_FUNCTION_WORDS and n_best >= 2 * n_next else None


@lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    """Return the script of a letter: the first word of its Unicode name, which is ``CJK`` for ideographs."""
    name = unicodedata.name(letter, "").split(" ", 1)[0]
    return name if name == "CJK" else name.capitalize() or "Unknown"
