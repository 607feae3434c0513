"""``prepare sentences``: write one sentence per line, from lines or from running text."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

from simcse_cli.data.file_sets import FileSet
from simcse_cli.data.given import Given
from simcse_cli.data.writers import Row
from simcse_cli.prepare.options import SentenceOptions
from simcse_cli.prepare.rows import RowWriter, chosen

_WITH_FULL_STOPS = (
    "mr mrs ms dr prof rev gen col lt sgt capt st jr sr "
    "jan feb mar apr jun jul aug sep sept oct nov dec "
    "vs inc ltd co corp fig no vol pp ed eds al e.g i.e cf a.m p.m u.s u.k"
)
_ABBREVIATIONS = frozenset(_WITH_FULL_STOPS.split())
# An end mark, closing quotes or brackets, and white space before anything but a small letter; or a
# CJK end mark and closing quotes or brackets.
_BOUNDARY = re.compile(
    r"""(?<=[.!?…])(["'”’»)\]]*)\s+(?=["'“‘«(\[]*[^\W_a-z])|(?<=[。！？])(["”」』）]*)\s*(?=\S)"""
)
_LAST_WORD = re.compile(r"([^\s(\[\"'“‘«]+)\.$")


def prepare_sentences(inputs: Sequence[str], options: SentenceOptions, writer: RowWriter) -> None:
    given = Given.of(options, progress=writer.progress).of_texts(options.column, options.text)
    find = partial(FileSet.find, output=str(options.output), text_per=options.text_per)
    sources = [find(source, given) for source in inputs]
    files = list(chain.from_iterable(source.files for source in sources))
    rows = sentence_rows(sources, split=options.split_sentences)
    settings = chosen(options, "column", "text_per", "split_sentences")
    if options.text is not None:
        settings["text"] = options.text
    writer.write("sentences", rows, ("text",), inputs=files, settings=settings)


def sentence_rows(sources: Iterable[FileSet], *, split: bool = False) -> Iterator[Row]:
    """Yield a row for each text of the sources, or with ``split`` for each sentence."""
    for source in sources:
        for text in source.sentences():
            sentences = split_sentences(text) if split else [text]
            for sentence in sentences:
                yield (sentence,)


def split_sentences(text: str) -> list[str]:
    """Split a text into stripped sentences; only the white space between them is lost.

    A full stop does not end a sentence after an abbreviation or an initial (``J. Smith``), or
    before a small letter.
    """
    sentences: list[str] = []
    start = 0
    for boundary in _BOUNDARY.finditer(text):
        # A sentence ends after its closing quotes or brackets, which are group 2 behind a CJK end
        # mark and group 1 behind any other.
        end = boundary.end(1) if boundary.group(1) is not None else boundary.end(2)

        # Find the word before a full stop; it is empty if the end mark is no full stop.
        match = _LAST_WORD.search(text[start : boundary.start()])
        word = match.group(1) if match else ""
        is_initial = len(word) == 1 and word.isalpha() and word.isupper()
        if not is_initial and word.lower() not in _ABBREVIATIONS:
            sentences.append(text[start:end].strip())
            start = end
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]
