import json
from collections import Counter, defaultdict

import pytest

from simcse_cli.choices import HardNegativeLabel, PositiveLabel
from simcse_cli.data.nli import Label, NliPair, iter_nli
from simcse_cli.errors import DataError
from simcse_cli.prepare.nli import NliCounts, nli_rows

E, N, C = Label
PAIRS = [
    NliPair("p", "p-e1", E),
    NliPair("p", "p-e2", E),
    NliPair("p", "p-n", N),
    NliPair("q", "q-e", E),
    NliPair("p", "p-c1", C),
    NliPair("p", "p-c2", C),
    NliPair("r", "r-c", C),
    NliPair("r", "r-x", None),
]
EXPECTED = [NliPair("p", "h", E), NliPair("p", "i", N), NliPair("p", "j", C), NliPair("p", "k", None)]


def rows(positive="entailment", hard_negative="contradiction", *, seed=0, corpora=(PAIRS,)):
    counts = NliCounts()
    made = list(
        nli_rows(
            corpora,
            positive=PositiveLabel(positive),
            hard_negative=HardNegativeLabel(hard_negative),
            seed=seed,
            counts=counts,
        )
    )
    return made, counts


def jsonl(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


SNLI = jsonl(*({"gold_label": label, "sentence1": "p", "sentence2": h, "captionID": "1"} for label, h in
               [("entailment", "h"), ("neutral", "i"), ("contradiction", "j"), ("-", "k")]))  # fmt: skip
ANLI = jsonl(*({"uid": "1", "context": "p", "hypothesis": h, "label": label} for label, h in
               [("e", "h"), ("n", "i"), ("c", "j"), ("", "k")]))  # fmt: skip
HUB = jsonl(*({"premise": "p", "hypothesis": h, "label": label} for label, h in
              [(0, "h"), (1, "i"), (2, "j"), (-1, "k")]))  # fmt: skip
TSV = "gold_label\tsentence1_parse\tsentence1\tsentence2\n" + "".join(
    f'{label}\t( "x )\tp\t{h}\n'
    for label, h in [("entailment", "h"), ("neutral", "i"), ("contradiction", "j"), ("-", "k")]
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("snli.jsonl", SNLI),
        ("anli.jsonl", ANLI),
        ("hub.jsonl", HUB),
        ("mnli.tsv", TSV),
        ("snli_train.txt", TSV),
    ],
)
def test_iter_nli_reads_the_published_layouts(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert [list(pairs) for pairs in iter_nli(tmp_path / name)] == [EXPECTED]


def write_senteval(folder):
    for split in ("dev", "test"):
        (folder / f"s1.{split}").write_text("p \np \n")
        (folder / f"s2.{split}").write_text("h \ni \n")
        (folder / f"labels.{split}").write_text("entailment\nneutral\n")


@pytest.mark.parametrize(("name", "n_files"), [("s1.dev", 1), ("s2.test", 1), ("labels.dev", 1), ("", 2)])
def test_iter_nli_reads_the_senteval_layout(tmp_path, name, n_files):
    write_senteval(tmp_path)
    assert [list(pairs) for pairs in iter_nli(tmp_path / name)] == [EXPECTED[:2]] * n_files


def test_iter_nli_counts_the_lines_of_the_three_files(tmp_path):
    write_senteval(tmp_path)
    (tmp_path / "s2.dev").write_text("h\n")
    with pytest.raises(DataError, match=r"s1\.dev 2, s2\.dev 1, labels\.dev 2"):
        [list(pairs) for pairs in iter_nli(tmp_path)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (jsonl({"sentence1": "a", "sentence2": "b", "gold_label": "maybe"}), "line 1: label 'maybe'"),
        (jsonl({"sentence1": "a", "sentence2": "b"}), "need sentence1, sentence2 and gold_label"),
    ],
)
def test_iter_nli_names_what_is_no_nli(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        [list(pairs) for pairs in iter_nli(tmp_path / "a.jsonl")]


def test_iter_nli_refuses_folders_of_something_else(tmp_path):
    with pytest.raises(DataError, match=r"without labels\.\* files"):
        list(iter_nli(tmp_path))


def test_nli_rows_gives_one_triplet_per_premise_that_has_both():
    made, counts = rows()
    assert len(made) == 1
    anchor, positive, hard_negative = made[0]
    assert anchor == "p"
    assert positive in {"p-e1", "p-e2"}
    assert hard_negative in {"p-c1", "p-c2"}
    assert counts.labels == {"entailment": 3, "neutral": 1, "contradiction": 3, "no_label": 1}
    assert (counts.n_premises, counts.n_without_partner) == (3, 2)


def test_nli_rows_draws_each_hypothesis_equally_often():
    pairs = [
        NliPair(f"p{i}", f"{label}{j}", label) for i in range(1500) for label in (E, C) for j in range(3)
    ]
    made, _ = rows(corpora=[pairs])
    for column in (1, 2):
        drawn = Counter(row[column] for row in made)
        assert all(abs(count - 500) < 5 * 18.3 for count in drawn.values())
    # The two draws are independent: all nine combinations, 166.7 each.
    assert all(abs(n - 166.7) < 5 * 12.2 for n in Counter(row[1:] for row in made).values())


def test_nli_rows_does_not_depend_on_other_premises():
    assert rows(corpora=[[p for p in PAIRS if p.premise == "p"]])[0] == rows()[0]


def test_nli_rows_groups_each_corpus_by_itself():
    made, counts = rows(corpora=[PAIRS, PAIRS])
    assert made == rows()[0] * 2
    assert counts.n_premises == 6


@pytest.mark.parametrize(
    ("positive", "expected"),
    [
        ("entailment", ["p-e1", "p-e2", "q-e"]),
        ("neutral", ["p-n"]),
        ("contradiction", ["p-c1", "p-c2", "r-c"]),
        ("all", ["p-e1", "p-e2", "p-n", "q-e", "p-c1", "p-c2", "r-c"]),
    ],
)
def test_nli_rows_without_hard_negatives_gives_every_pair_of_the_label(positive, expected):
    made, _ = rows(positive, "none")
    assert [hypothesis for _, hypothesis in made] == expected


def test_nli_rows_with_both_gives_a_row_for_each_kind_of_hard_negative():
    made, _ = rows(hard_negative="both")
    assert [row[:2] for row in made] == [made[0][:2]] * 2
    assert made[0][2] in {"p-c1", "p-c2"}
    assert made[1][2] == "p-n"


def test_nli_rows_never_takes_the_positive_as_its_hard_negative():
    for seed in range(20):
        made, _ = rows("all", "contradiction", seed=seed)
        assert all(positive != negative for _, positive, negative in made)


def test_nli_rows_of_snli_belong_together(shared_data):
    """Look every triplet up in the raw files, read by other means."""
    files = [shared_data / "nli" / f"snli_{split}.jsonl" for split in ("dev", "test")]
    made, _ = rows(seed=42, corpora=[pairs for path in files for pairs in iter_nli(path)])
    assert len(made) == 5864
    labels = defaultdict(set)
    n_premises = 0
    for path in files:
        both = defaultdict(set)
        for line in path.read_text().splitlines():
            record = json.loads(line)
            labels[record["sentence1"].strip(), record["sentence2"].strip()].add(record["gold_label"])
            both[record["sentence1"]].add(record["gold_label"])
        n_premises += sum({"entailment", "contradiction"} <= found for found in both.values())
    assert n_premises == 5864
    for premise, positive, hard_negative in made:
        assert "entailment" in labels[premise, positive]
        assert "contradiction" in labels[premise, hard_negative]
