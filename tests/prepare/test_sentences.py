import pytest

from simcse_cli.data.file_sets import FileSet
from simcse_cli.data.table import RowPosition
from simcse_cli.prepare.sentences import sentence_rows, split_sentences


def test_sentence_rows_reads_sources_in_order(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.jsonl").write_text('{"text": "three. Four."}\n')
    sources = [FileSet.find(str(tmp_path / name)) for name in ("a.txt", "b.jsonl")]
    whole = sentence_rows(sources, split=False, position=RowPosition())
    assert list(whole) == [("one",), ("two",), ("three. Four.",)]
    split = sentence_rows(sources, split=True, position=RowPosition())
    assert list(split)[2:] == [("three.",), ("Four.",)]


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
        ["I said no.", "Then I left.", "No.", "See No. 5."],
        ["¿Dónde está?", "¡No llega!", "¿y tú?", "Gracias.", "«¿qué?» dijo."],
        ["Er sagte: „Das geht.“", "»Gut.«", "„Nein“, sagte er.", "‹Oui.›", "Bien."],
        ["Es kam z. B. am 3. Oktober von Dr. Kurz (Abt. IT, Nr. 5) bzw. von Fa. Ott.", "Gut."],
        ["Die 3. Auflage kostet d. h. Sie zahlen ca. 5 Euro usw. über Hrn. Meier.", "Ja."],
        ["Ich bin 30.", "Danach war ich 31.", "I am 30.", "Then I was 31."],
        ["La Sra. López vive en EE. UU. desde la pág. 3.", "Ud. no."],
        ["Mme. Curie et M. Dupont, p. ex. en été.", "Bon."],
        ["Il dit.", "« Oui, je viens. »", "Il partit.", "«\u00a0Non\u202f!\u00a0» dit-il.", "Bon."],
        ["Er kam.", "»Gut.«", "»Ja.«", "Dann ging er."],
        ["मैं घर गया।", "वह आया॥", "१ ठीक।"],
        ["هل أنت هنا؟", "نعم.", "أنا هنا."],
        ["یہ گھر ہے۔", "وہ آیا۔"],
        ["Ես եկա։", "Նա գնաց։"],
        ["ሰላም።", "እንዴት ነህ፧", "ደህና።"],
        ["Ποιος είναι\u037e", "Εγώ είμαι."],
    ],
)
def test_split_sentences_of_text_joined_by_spaces(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


def test_split_sentences_needs_no_space_after_cjk_marks():
    assert split_sentences("我喜欢猫。你呢？") == ["我喜欢猫。", "你呢？"]


@pytest.mark.parametrize(
    "sentences",
    [
        ["「はい。そうです。」と言った。", "料金は1.5万円です。"],
        ["彼は『行く！』と答えた。", "とても（本当に。多分）いい。", "「はい。」", "とても。"],
        ["「閉じない。", "次。"],
        ["他说：“好。很好。”", "然后走了。", "“是吗？”", "她问。"],
        ["何！？", "本当。。。", "実験した．", "値は１．５だった．", "ﾊｲ｡", "ｲｲｴ｡"],
    ],
)
def test_split_sentences_keeps_cjk_brackets_whole(sentences):
    assert split_sentences("".join(sentences)) == sentences


def test_split_sentences_of_nothing():
    assert split_sentences("  ") == []


def test_split_sentences_loses_nothing(sentences):
    text = "  ".join(sentences)
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
