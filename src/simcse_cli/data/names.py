"""What the names of columns mean: names of roles, names that go together, and other names."""

import re
import unicodedata
from collections.abc import Sequence

POSITIONAL = ("anchor", "positive", "hard_negative")
"""The roles of texts in a training row, in order."""


def _folded_names(text: str) -> tuple[str, ...]:
    return tuple(fold(name) for name in text.split())


def fold(name: str) -> str:
    """Return a name as it is compared: in lower case, with ``_`` for spaces and hyphens."""
    plain = unicodedata.normalize("NFC", name.strip().casefold())
    return re.sub(r"[\s-]+", "_", plain)


_ANCHOR = _folded_names(
    "anchor sent sent0 sentence sentence1 sentence_a text1 text_a q1 question1 premise question "
    "query prompt utterance original origin left #1_string normal_sentence "
    "frage satz pregunta pergunta domanda vraag fråga kysymys pytanie otázka вопрос питання "
    "запитання ερώτηση soru câu_hỏi pertanyaan שאלה سؤال السؤال प्रश्न คำถาม "
    "问题 提问 句子 原句 原始词 問題 質問 文 질문 문장"
)
_POSITIVE = _folded_names(
    "positive positives sent1 sentence2 sentence_b text2 text_b q2 question2 hypothesis entailment "
    "paraphrase answer response reply passage right #2_string simple_sentence "
    "antwort respuesta resposta risposta réponse antwoord svar vastaus odpowiedź odpověď ответ "
    "відповідь απάντηση cevap yanıt câu_trả_lời jawaban תשובה جواب الجواب الإجابة उत्तर คำตอบ "
    "回答 答案 解答 蕴含 标准词 답변 답"
)
_NUMBERED_NEGATIVE = _folded_names(
    "hard_negative hard_negatives hard_neg hard_negs negative negatives neg negs contradiction"
)
"""Names of hard negatives that a number may follow."""
_HARD_NEGATIVE = (*_NUMBERED_NEGATIVE, *_folded_names("sent2 sentence3 矛盾"))

STRONG = {"anchor": _ANCHOR, "positive": _POSITIVE}
"""Names that say which side of a pair a column holds, whatever the other columns are."""

WEAK_SIDES = {
    "anchor": _folded_names("text content context source src"),
    "positive": _folded_names("target tgt pos"),
}
"""Names that say which side a column holds only if the other side has a strong name."""

WEAK_COUPLES = (
    ("source", "target"),
    ("src", "tgt"),
    ("title", "body"),
    ("title", "content"),
    ("title", "text"),
    ("subject", "body"),
    ("subject", "content"),
    ("subject", "text"),
    ("name", "description"),
    ("term", "definition"),
    ("instruction", "output"),
    ("input", "output"),
    ("prompt", "completion"),
    ("context", "response"),
)
"""Names of an anchor and its positive that count only if a table has both."""

WEAK_TEXTS = _folded_names(
    "text content body description comment message document caption line abstract review passage"
)
"""Names of a column of single texts; an earlier name takes precedence."""

SCORES = _folded_names("score similarity similarity_score relatedness_score rating gold sim")
LABELS = _folded_names(
    "label gold_label labels class is_duplicate quality entailment_judgment entailment_label "
    "alignment_label category intent"
)
TOPICS = _folded_names("category intent class")
"""Names of labels that say what a text is about, and do not judge a pair."""

DESCRIBING = _folded_names(
    "source src origin category topic tag type lang language split set genre domain author user "
    "worker department product url page year votes views count rank position pos length seconds "
    "context note quelle kategorie thema bemerkung fuente 来源"
)
"""Names of columns that describe a pair, but neither belong to it nor judge it."""

_OTHERS = _folded_names("id _id image_id image sku title subject body description comment message")
_LANGUAGES = frozenset(
    _folded_names(
        "ar bg bn ca cs da de el en es et fa fi fr he hi hr hu id it ja ko lt lv ms nl no pl pt ro "
        "ru sk sl sr sv ta th tr uk ur vi zh"
    )
)
_KNOWN = frozenset(_OTHERS).union(
    *STRONG.values(), *WEAK_SIDES.values(), *WEAK_COUPLES, WEAK_TEXTS, SCORES, LABELS, DESCRIBING
)
_NUMBER = re.compile(r"[_ -]?\d+$")
_NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?([_.\d]|$)")
_INDEX = re.compile(r"(^|[\W_]|^pair|^q)(id|ids|idx|index)_?\d*$")
# What may differ between the two names of a couple, at the end or at the start.
_ENDS = ({"1", "2"}, {"0", "1"}, {"a", "b"}, {"x", "y"}, {"left", "right"})
_AT_END = re.compile(r"(?P<end>left|right|[abxy]|\d)$")
_AT_START = re.compile(r"^(?P<end>left|right|[abxy]|\d)(?=[_\W])")


def is_known(name: str) -> bool:
    """Tell whether a cell is a usual name of a column."""
    return fold(name) in _KNOWN or is_hard_negative(name)


def is_usual(name: str, role: str) -> bool:
    """Tell whether a name is usual for a column of a role.

    Names of anchors and of positives count for either side of a pair, and names of scores and of
    labels count for both of these roles.

    Example:
        >>> is_usual("sentence", "text"), is_usual("label", "text"), is_usual("label", "score")
        (True, False, True)
    """
    folded = fold(name)
    if role in ("label", "score"):
        return folded in (*LABELS, *SCORES)
    if role == "hard_negative":
        return is_hard_negative(name)
    is_text = folded in (*_ANCHOR, *WEAK_TEXTS)
    return is_text or (role != "text" and folded in _POSITIVE)


def are_languages(names: Sequence[str]) -> bool:
    """Tell whether the names are codes of two or more languages: ``de``, ``en``."""
    codes = [fold(name) for name in names]
    return len(codes) > 1 and len(set(codes)) == len(codes) and _LANGUAGES.issuperset(codes)


def is_hard_negative(name: str) -> bool:
    """Tell whether a column with this name holds hard negatives: ``negative_2`` or ``neg3``."""
    folded = fold(name)
    return folded in _HARD_NEGATIVE or _NUMBER.sub("", folded) in _NUMBERED_NEGATIVE


def is_negative(name: str) -> bool:
    """Tell whether a column with this name holds any negatives: ``negative_ctxs.0.text``."""
    return is_hard_negative(name) or _NEGATIVE.match(fold(name)) is not None


def is_row_id(name: str) -> bool:
    """Tell whether a name is that of row numbers or ids.

    Example:
        >>> [is_row_id(name) for name in ("old_index", "#1 ID", "pair_ID", "valid")]
        [True, True, True, False]
    """
    return _INDEX.search(fold(name)) is not None


def are_couple(first: str, second: str) -> bool:
    """Tell whether two names differ only in 1/2, 0/1, a/b, x/y or left/right at one end.

    Example:
        >>> are_couple("frase_1", "frase_2"), are_couple("text", "title")
        (True, False)
    """
    left = fold(first)
    right = fold(second)
    for pattern in (_AT_END, _AT_START):
        # One name has one part of a couple such as 1 and 2, the other name has the other part.
        if {*pattern.findall(left), *pattern.findall(right)} in _ENDS:
            stem = pattern.sub("", left)
            if stem and stem == pattern.sub("", right):
                return True
    return False
