"""An option that would have no effect beside the others is refused by name, and nothing is written."""

import csv

import pytest

from helpers import SENTENCES, write_sts_folder

LINES = "\n".join(SENTENCES) + "\n"
PAIRS = "anchor,positive\na dog runs,a dog is running\na cat sleeps,the cat is asleep\n"

UNUSED = [
    ("prepare sentences lines.txt -o out.txt --keep-order", "--keep-order"),
    (
        "prepare sentences lines.txt -o out.txt --dedup exact --near-threshold 0.5",
        "--near-threshold",
    ),
    ("prepare sentences lines.txt -o out.txt --max-length 20", "--max-length"),
    ("prepare sentences lines.txt -o out.txt --column text", "--column"),
    ("prepare neighbours lines.txt -o out.csv --column text", "--column"),
    ("prepare lint lines.txt --max-length 20", "--max-length"),
    ("prepare pairs pairs.csv -o out.csv --top-k 5", "--top-k"),
    ("prepare pairs pairs.csv -o out.csv --min-score 0.5", "--min-score"),
    ("prepare pairs pairs.csv -o out.csv --model none", "--model"),
    ("prepare pairs pairs.csv -o out.csv --resume", "--resume"),
    ("prepare pairs pairs.csv -o out.csv --flickr30k --parallel", "--parallel"),
    ("prepare pairs pairs.csv -o out.csv --flickr30k --columns a,b", "--columns"),
    ("prepare pairs lines.txt lines.txt -o out.csv --parallel --columns a,b", "--columns"),
    ("prepare pairs lines.txt -o out.csv --paraphrases --flickr30k", "--flickr30k"),
    ("prepare pairs lines.txt -o out.csv --paraphrases --parallel", "--parallel"),
    ("prepare pairs lines.txt -o out.csv --paraphrases --columns text", "--column"),
    ("prepare hard-negatives pairs.csv -o out.csv --index none --corpus lines.txt", "--corpus"),
    ("prepare neighbours lines.txt -o out.csv --every", "--every"),
    ("prepare neighbours lines.txt -o out.csv --every --next 1", "--every"),
    ("augment lines.txt --method crop -o out.csv --device cpu", "--device"),
    ("augment lines.txt --method crop -o out.csv --wordnet-dir .", "--wordnet-dir"),
    ("augment lines.txt --method mlm -o out.csv --workers 2", "--workers"),
    ("augment lines.txt --method crop -o out.csv --column text", "--column"),
    ("encode lines.txt -o out.npy --column text", "--column"),
    ("encode lines.txt -o - --dtype int8", "--dtype"),
    ("encode lines.txt -o - --resume", "--resume"),
    ("encode pairs.csv --pairs --dtype int8", "--dtype"),
    ("encode pairs.csv --pairs --normalize", "--normalize"),
    ("encode pairs.csv --pairs --workers 2", "--workers"),
    ("encode --merge out.npy --dtype int8", "--dtype"),
    ("encode --merge out.npy -o other.npy", "--output"),
    ("eval sts --data-dir sts --fit-sample 10", "--fit-sample"),
    ("eval sts --data-dir sts --columns a,b,c", "--columns"),
    ("eval sts --data-dir sts --write-sentences out.txt --ci", "--ci"),
    ("eval sts --data-dir sts --write-sentences out.txt --metric pearson", "--metric"),
    ("eval sts --data-dir sts --write-sentences out.txt -o out.json", "--output"),
    ("eval sts --data-dir sts --write-sentences out.txt --format json", "--format"),
    ("eval sts --data-dir sts --cache-dir kept --no-cache", "--cache-dir"),
    ("eval transfer --data-dir sts --cache-dir kept --no-cache", "--cache-dir"),
    ("eval sts --data-dir sts --vectors none.txt --pooler cls", "--pooler"),
    ("eval sts --data-dir sts --vectors none.txt --batch-tokens 64", "--batch-tokens"),
    ("eval transfer --data-dir sts --columns text=a,label=b", "--columns"),
    ("analyze geometry --model none --data-dir sts --columns a,b,c", "--columns"),
    ("analyze geometry --model none --data-dir sts --sentences lines.txt", "--sentences"),
    ("analyze geometry --model none --data-dir sts --fit-sample 10", "--fit-sample"),
    ("analyze overlap pairs.csv --terminal-plot --format json", "--terminal-plot"),
    ("analyze retrieval lines.txt dog --at 1", "--at"),
    ("analyze retrieval lines.txt dog --faiss-factory Flat", "--faiss-factory"),
    ("analyze retrieval lines.txt dog --column text", "--column"),
    ("analyze retrieval --index none dog --backend faiss", "--backend"),
    ("analyze retrieval --index none dog --truncate-dim 8", "--truncate-dim"),
    ("analyze retrieval --index none dog --long mean", "--long"),
    ("analyze retrieval lines.txt --interactive --html out.html", "--html"),
    ("analyze retrieval lines.txt --interactive --qrels lines.txt", "--qrels"),
    ("compare none --against simcse.5 --group supervised", "--group"),
    ("compare none --tolerance 0.1", "--tolerance"),
]


@pytest.fixture(autouse=True)
def inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text(LINES)
    (tmp_path / "pairs.csv").write_text(PAIRS)
    write_sts_folder(tmp_path / "sts")
    return tmp_path


@pytest.mark.parametrize(("command", "option"), UNUSED, ids=[command for command, _ in UNUSED])
def test_option_without_effect_is_refused(invoke, inputs, command, option):
    before = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
    result = invoke(*command.split())
    assert result.exit_code == 2, result.stderr
    said = result.stderr
    assert f"{option}: " in said.partition(",")[0]
    assert {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()} == before


def test_option_from_a_variable_passes_where_it_has_no_use(invoke, inputs, monkeypatch):
    monkeypatch.setenv("SIMCSE_DEVICE", "cpu")
    monkeypatch.setenv("SIMCSE_WORDNET", str(inputs))
    result = invoke("augment", "lines.txt", "--method", "crop", "-o", "out.csv")
    assert result.exit_code == 0, result.stderr


def test_prepare_paraphrases_report_the_overlap_of_the_pairs(invoke, inputs, tiny_model_dir):
    call = (
        "prepare",
        "pairs",
        "lines.txt",
        "--paraphrases",
        "--model",
        tiny_model_dir,
        "--pooler",
        "avg",
    )
    result = invoke(*call, "--min-score", "-1", "-o", "out.csv", "--overlap")
    assert result.exit_code == 0, result.stderr
    with (inputs / "out.csv").open() as stream:
        pairs = [(row["anchor"].split(), row["positive"].split()) for row in csv.DictReader(stream)]
    assert f"mean of {len(pairs)} pairs" in result.stderr


def test_prepare_nli_reads_the_encoding_given(invoke, inputs):
    rows = "gold_label\tsentence1\tsentence2\nentailment\tun café\tune façade\n"
    (inputs / "nli.tsv").write_bytes(rows.encode("latin-1"))
    call = ("prepare", "nli", "nli.tsv", "--hard-negative", "none", "-o", "out.csv")
    assert invoke(*call).exit_code == 1
    result = invoke(*call, "--encoding", "latin-1")
    assert result.exit_code == 0, result.stderr
    assert (inputs / "out.csv").read_text().splitlines()[1] == "un café,une façade"
