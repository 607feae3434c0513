import json
import shlex
from collections import Counter, defaultdict

import pytest

from simcse_cli.data.nli import Label, NliPair, iter_nli
from simcse_cli.errors import DataError
from simcse_cli.prepare.nli import NliCounts, choose, nli_rows, prepare_nli
from simcse_cli.prepare.options import NliOptions
from simcse_cli.prepare.rows import RowWriter
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import HardNegativeLabel, PositiveLabel

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
        NliPair(f"p{i}", f"{label}{j}", label)
        for i in range(1500)
        for label in (E, C)
        for j in range(3)
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
    more = [NliPair("s", "s-e", E), NliPair("s", "s-c", C)]  # has no neutral hypothesis
    made, counts = rows(hard_negative="both", corpora=[[*PAIRS, *more]])
    assert [row[:2] for row in made[:2]] == [made[0][:2]] * 2
    assert made[0][2] in {"p-c1", "p-c2"}
    assert made[1][2] == "p-n"
    assert (made[2:], counts.n_without_partner) == ([("s", "s-e", "s-c")], 2)


def test_nli_rows_never_takes_the_positive_as_its_hard_negative():
    for seed in range(20):
        made, _ = rows("all", "contradiction", seed=seed)
        assert all(positive != negative for _, positive, negative in made)


@pytest.mark.parametrize(
    ("hard_negative", "expected"),
    [
        ("none", "anchor,positive\np,n\n"),
        ("contradiction", "anchor,positive,hard_negative\np,n,c\n"),
    ],
)
def test_prepare_nli_joins_its_files_and_records_what_it_read(tmp_path, hard_negative, expected):
    snli = [("p", "n", "neutral"), ("p", "c", "contradiction")]
    anli = [("q", "e", "e"), ("q", "f", "c")]
    names = {
        "snli": ("sentence1", "sentence2", "gold_label"),
        "anli": ("context", "hypothesis", "label"),
    }
    for (name, keys), rows in zip(names.items(), (snli, anli), strict=True):
        lines = (json.dumps({"uid": "1", **dict(zip(keys, row, strict=True))}) for row in rows)
        (tmp_path / name).with_suffix(".jsonl").write_text("\n".join(lines))
    chosen = NliOptions(output=tmp_path / "o.csv", anli=[str(tmp_path / "anli.jsonl")],
                        positive=PositiveLabel.NEUTRAL, hard_negative=HardNegativeLabel(hard_negative))  # fmt: skip
    prepare_nli([str(tmp_path / "snli.jsonl")], chosen, RowWriter(chosen, SilentProgress()))
    assert chosen.output.read_text() == expected
    manifest = json.loads((tmp_path / "o.csv.manifest.json").read_text())
    assert {"positive": "neutral", "hard_negative": hard_negative}.items() <= manifest[
        "settings"
    ].items()
    assert manifest["corpus"]["labels"] == {"neutral": 1, "contradiction": 2, "entailment": 1}


def test_prepare_nli_says_what_it_read_if_it_gives_no_row(tmp_path):
    rows = [("p", "a", "neutral"), ("p", "b", "contradiction"), ("q", "c", "contradiction")]
    source = tmp_path / "a b.jsonl"
    keys = ("sentence1", "sentence2", "gold_label")
    lines = [json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows]
    source.write_text("".join(lines))
    options = NliOptions(output=tmp_path / "out.csv", hard_negative=HardNegativeLabel.NONE)
    with pytest.raises(DataError, match="the input gives no row") as caught:
        prepare_nli([str(source)], options, RowWriter(options, SilentProgress()))
    assert "read 0 entailment, 1 neutral, 2 contradiction" in caught.value.message
    assert caught.value.hint.endswith(f"simcse prepare lint {shlex.quote(str(source))}")


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
            labels[record["sentence1"].strip(), record["sentence2"].strip()].add(
                record["gold_label"]
            )
            both[record["sentence1"]].add(record["gold_label"])
        n_premises += sum({"entailment", "contradiction"} <= found for found in both.values())
    assert n_premises == 5864
    for premise, positive, hard_negative in made:
        assert "entailment" in labels[premise, positive]
        assert "contradiction" in labels[premise, hard_negative]


def test_choose_is_uniform_over_keys_and_fixed_by_seed_and_key():
    options = ["a", "b", "c"]
    drawn = Counter(choose(options, seed=7, key=str(i)) for i in range(6000))
    assert all(abs(count - 2000) < 5 * 36.5 for count in drawn.values())
    assert choose(options, seed=7, key="x") == choose(options, seed=7, key="x")
    assert len({choose(options, seed=seed, key="x") for seed in range(50)}) == 3


def test_choose_draws_what_earlier_versions_drew():
    assert [choose("abcdefgh", seed=42, key=str(i)) for i in range(12)] == list("gfdaabehfccg")


def test_premises_without_both_labels_are_the_reason():
    pairs = [NliPair("p", "h", Label.ENTAILMENT), NliPair("q", "i", Label.CONTRADICTION)]
    with pytest.raises(DataError, match="2 premises, 2 of them without both") as caught:
        list(nli_rows([pairs], seed=0, counts=NliCounts()))
    assert "--hard-negative none" in caught.value.hint
