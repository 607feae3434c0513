import pytest

from simcse_cli.data.file_sets import FileSet
from simcse_cli.prepare.sentences import sentence_rows, split_sentences


def test_sentence_rows_reads_sources_in_order(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.jsonl").write_text('{"text": "three. Four."}\n')
    sources = [FileSet.find(str(tmp_path / name)) for name in ("a.txt", "b.jsonl")]
    assert list(sentence_rows(sources)) == [("one",), ("two",), ("three. Four.",)]
    assert list(sentence_rows(sources, split=True))[2:] == [("three.",), ("Four.",)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["He came.", "She left!", "Why?"],
        ["Dr. Smith met J. R. Jones in the U.S. on Monday.", "It rained."],
        ['"Did he?" she asked.', "(Yes.)", "He did."],
        ["It costs 3.5 dollars, e.g. in No. 5.", "Good."],
        ["我喜欢猫。", "你呢？", "好。"],
        ["Wait...", "What?!", "Été was next."],
        ["no end mark"],
    ],
)
def test_split_sentences_of_text_joined_by_spaces(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


def test_split_sentences_needs_no_space_after_cjk_marks():
    assert split_sentences("我喜欢猫。你呢？") == ["我喜欢猫。", "你呢？"]


def test_split_sentences_of_nothing():
    assert split_sentences("  ") == []


def test_split_sentences_loses_nothing(sentences):
    text = "  ".join(sentences)
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
