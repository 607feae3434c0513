"""``prepare sentences``: write one sentence per line, from lines or from running text."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from simcse_cli.data.file_sets import FileSet
from simcse_cli.data.formats import source_name
from simcse_cli.data.given import Given
from simcse_cli.data.table import RowPosition
from simcse_cli.data.writers import Row
from simcse_cli.files.resources import resource
from simcse_cli.files.schema import parse_yaml
from simcse_cli.prepare.options import SentenceOptions
from simcse_cli.prepare.rows import RowWriter, chosen

_LISTS = parse_yaml(resource("abbreviations.yaml"), "abbreviations")
_WORDS = {kind: frozenset(listed.split()) for kind, listed in _LISTS.items()}
_FOREIGN = _WORDS["german"] | _WORDS["spanish"] | _WORDS["french"]
_OPENERS = r"\"'“‘„«»‹›(\["
# Greek (the question mark), Armenian, Arabic, Urdu, Hindi and Ethiopic marks.
_OTHER_MARKS = "\u037e։؟۔।॥።፧"
# There are two kinds of boundary. Behind an end mark: closing quotes or brackets (group 1) and
# white space, before ¿, ¡, a digit or a letter other than a to z; French has spaces inside « ».
# Behind a CJK end mark: closing quotes or brackets (group 2), unless と follows a quote, since the
# sentence then goes on. A full-width stop is a mark only behind a CJK letter, so not in １．５.
_BOUNDARY = re.compile(
    rf"""(?<=[.!?…{_OTHER_MARKS}])((?:["'“”’«»‹›)\]]|\s[»›](?=\s))*)\s+"""
    rf"""(?=(?:[{_OPENERS}]|[«‹]\s)*(?:[¿¡]|[^\W_a-z]))"""
    r"""|(?:(?<=[。｡！？])|(?<=[\u3040-\u30ff\u4e00-\u9fff]．))"""
    r"""(["”」』）)]*)\s*(?=[^\s。！？])(?!(?<=[」』])と[、い\u4e00-\u9fff])"""
)
# The last two words before a full stop; the first of them may be missing.
_LAST_WORDS = re.compile(rf"(?:([^\s{_OPENERS}]+)\s+)?[{_OPENERS}]*([^\s{_OPENERS}]+)\.$")
_NEXT_WORD = re.compile(rf"[\s{_OPENERS}¿¡]*([^\W_]+\.?)")
_LONGEST_LOOK = 80  # characters before a mark in which the last two words are looked for
_BRACKETS = {"「": "」", "『": "』", "（": "）", "(": ")", "“": "”"}


def prepare_sentences(inputs: Sequence[str], options: SentenceOptions, writer: RowWriter) -> None:
    given = Given.of(options, progress=writer.progress).of_texts(options.column, options.text)
    output = str(options.output)
    sources = [
        FileSet.find(source, given, output=output, text_per=options.text_per) for source in inputs
    ]
    files = list(chain.from_iterable(source.files for source in sources))
    position = RowPosition()
    rows = sentence_rows(sources, split=options.split_sentences, position=position)
    settings = chosen(options, "column", "text_per", "split_sentences")
    if options.text is not None:
        settings["text"] = options.text
    writer.write("sentences", rows, ("text",), inputs=files, settings=settings, position=position)


def sentence_rows(
    sources: Iterable[FileSet], *, split: bool, position: RowPosition
) -> Iterator[Row]:
    """Yield a row for each text of the sources, or with ``split`` for each sentence.

    ``position`` follows the texts of each file.
    """
    for source in sources:
        for file in source.files:
            position.open(source_name(file))
            texts = replace(source, files=(file,)).sentences()
            for number, text in enumerate(texts, start=1):
                position.row = number
                sentences = split_sentences(text) if split else [text]
                for sentence in sentences:
                    yield (sentence,)


def split_sentences(text: str) -> list[str]:
    """Split a text into stripped sentences; only the white space between them is lost.

    A full stop does not end a sentence after an abbreviation, an initial (``J. Smith``) or a German
    ordinal (``der 3. Platz``), before a small letter, or inside the brackets of a CJK text.
    """
    sentences: list[str] = []
    start = 0
    for boundary in _BOUNDARY.finditer(text):
        # A sentence ends after its closing quotes or brackets: group 2 for CJK, else group 1.
        is_cjk = boundary.group(1) is None
        end = boundary.end(2 if is_cjk else 1)
        if is_cjk:
            goes_on = _is_inside_brackets(text, start, end)
        else:
            before = text[max(start, boundary.start() - _LONGEST_LOOK) : boundary.start()]
            goes_on = _goes_on(before, text, boundary.end())
        if not goes_on:
            sentences.append(text[start:end].strip())
            start = end
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _is_inside_brackets(text: str, start: int, end: int) -> bool:
    """Tell whether a bracket that opens after ``start`` is open at ``end``, and is closed later."""
    return any(
        text.count(opening, start, end) > text.count(closing, start, end)
        and text.find(closing, end) >= 0
        for opening, closing in _BRACKETS.items()
    )


def _goes_on(before: str, text: str, position: int) -> bool:
    """Tell whether a sentence goes on behind an end mark, by the words on either side.

    ``before`` holds the last characters of the sentence so far, the mark included. The rest of the
    text begins at ``position``.
    """
    found = _NEXT_WORD.match(text, position)
    following = found.group(1) if found else ""
    is_after_spanish_mark = found is not None and bool(set("¿¡").intersection(found.group()))
    if following[:1].islower() and not is_after_spanish_mark:
        return True
    last = _LAST_WORDS.search(before)
    if last is None:  # another mark than a full stop
        return False
    previous = last.group(1) or ""
    word = last.group(2)
    if len(word) == 1 and word.isalpha() and word.isupper():  # an initial: J. Smith
        return True
    if word.lower() in _WORDS["english"] or _is_foreign(word):
        return True
    if word.lower() in _WORDS["before_numbers"]:
        return following[:1].isdigit()
    if word.isdigit() and len(word) <= 2:  # perhaps a German ordinal: am 3. Mai
        if following in _WORDS["german_months"]:
            return True
        is_english = before.endswith(f"I am {word}.")  # "am" is a German word as well
        return previous.lower() in _WORDS["before_german_ordinals"] and not is_english
    # Abbreviations of two parts, cut between them or behind them: z. B., d. h.
    is_cut_between = following.endswith(".") and _is_foreign(f"{word}.{following[:-1]}")
    return is_cut_between or (previous.endswith(".") and _is_foreign(previous + word))


def _is_foreign(word: str) -> bool:
    return word in _FOREIGN or (word[:1].isupper() and word[:1].lower() + word[1:] in _FOREIGN)
