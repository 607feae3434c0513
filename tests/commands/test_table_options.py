"""The same table gives the same columns in every command, with the same options to settle what it leaves open."""

import pytest

from simcse_cli.analysis.analyses import SPACE_ANALYSES
from surface import surface

OPTIONS = ("--no-header,--header", "--separator", "--encoding", "--keep-label")
MAILS = "Subject,Content,Source,Category\n" + "".join(
    f"Notice {n},The gate opens at {n} in the morning.,{source},{topic}\n"
    for n, source, topic in [
        (5, "web", "town"),
        (6, "mail", "park"),
        (7, "web", "town"),
        (8, "mail", "town"),
    ]
)
RATED = "frage_1;frage_2;punkte;thema\n" + "".join(
    f"Wann beginnt Kurs {n}?;Um wie viel Uhr beginnt Kurs {n}?;{score};Kurse\n"
    for n, score in [(1, "4,5"), (2, "0,5"), (3, "3,1"), (4, "2,2"), (5, "1")]
)
TEXT = "text = Content; not used: Subject, Source, Category"
PAIR = "{} = Subject, {} = Content; not used: Source, Category"
SCORED = "left = frage_1, right = frage_2, score = punkte; not used: thema"
MODEL = ["--model", "MODEL", "--pooler", "avg"]
ANALYSIS = ["--pair-file", "rated.csv", *MODEL, "-f", "json"]

# How each command that takes columns reads a table, and what it says of it; a new one fails the
# test below.
COMMANDS = {
    "simcse prepare sentences": (["mails.csv", "-o", "o.txt"], TEXT),
    "simcse prepare pairs": (["mails.csv", "-o", "o.csv"], PAIR.format("anchor", "positive")),
    "simcse prepare hard-negatives": (
        ["mails.csv", "-o", "n.csv", "--margin=-2", "--range", "0:2", *MODEL],
        PAIR.format("anchor", "positive"),
    ),
    "simcse prepare neighbours": (
        ["mails.csv", "--column", "Content", "-o", "p.csv", "--split-sentences"],
        None,
    ),
    "simcse prepare duplicates": (["mails.csv", "--kind", "exact", "-o", "d.csv"], TEXT),
    "simcse prepare lint": (["mails.csv"], PAIR.format("anchor", "positive")),
    "simcse augment": (["mails.csv", "--method", "delete", "-o", "a.csv", "--workers", "1"], TEXT),
    "simcse encode": (["mails.csv", "-o", "v.npy", *MODEL], TEXT),
    "simcse train": (
        [
            "--mode",
            "sup",
            "--train-file",
            "mails.csv",
            "--dry-run",
            "--batch-size",
            "2",
            "-o",
            "run",
            *MODEL,
        ],
        PAIR.format("anchor", "positive"),
    ),
    "simcse eval sts": (["--pair-file", "rated.csv", *MODEL], SCORED),
    "simcse eval transfer": (["--task-file", "mails.csv", *MODEL], None),
    "simcse analyze search": (["--corpus", "mails.csv", "--query", "gate", *MODEL], TEXT),
    "simcse analyze retrieval": (["--corpus", "mails.csv", "--query", "gate", *MODEL], TEXT),
    "simcse analyze groups": (["mails.csv", "--k", "2", *MODEL], TEXT),
    "simcse analyze overlap": (["mails.csv"], PAIR.format("left", "right")),
    "simcse analyze report": ([], None),
}
COMMANDS |= {f"simcse analyze {name}": (ANALYSIS, SCORED) for name in SPACE_ANALYSES}


def options_by_command():
    found = {}
    for line in surface():
        for position, word in enumerate(words := line.split()):
            if word.startswith("--"):
                found.setdefault(" ".join(words[:position]), set()).add(word)
                break
    return found


def test_every_command_that_takes_columns_takes_the_options_of_tables():
    options = options_by_command()
    taking = {
        path for path, own in options.items() if any("--column" in name.split(",") for name in own)
    }
    assert taking == set(COMMANDS) - {"simcse analyze retrieval"}  # the hidden name of `search`
    for path in taking:
        assert set(OPTIONS) <= options[path], path


@pytest.mark.parametrize("path", [path for path, (_, line) in COMMANDS.items() if line is not None])
def test_every_command_reads_the_same_columns(path, invoke, tmp_path, monkeypatch, tiny_model_dir):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mails.csv").write_text(MAILS)
    (tmp_path / "rated.csv").write_text(RATED)
    arguments, line = COMMANDS[path]
    words = [str(tiny_model_dir) if word == "MODEL" else word for word in arguments]
    outcome = invoke(*path.split()[1:], *words)
    assert outcome.exit_code == 0, outcome.stderr
    told = [each for each in outcome.stderr.splitlines() if "not used:" in each]
    assert [each.partition(": ")[2] for each in told] == [line]
    assert (
        "not used"
        not in invoke(*path.split()[1:], *words, "-q", *(["--force"] * ("-o" in words))).stderr
    )


def test_options_that_a_question_names_work_as_typed(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rated.csv").write_text(
        "text_a,text_b,same\nA dog.,A hound.,yes\nA cat.,A car.,no\nA cow.,A hen.,no\n"
    )
    asked = invoke("prepare", "pairs", "rated.csv", "-o", "o.csv")
    assert asked.exit_code == 1
    assert not (tmp_path / "o.csv").exists()
    keep = "--columns anchor=text_a,positive=text_b,label=same --keep-label yes"
    assert keep in asked.stderr
    assert invoke("prepare", "pairs", "rated.csv", "-o", "o.csv", *keep.split()).exit_code == 0
    assert (tmp_path / "o.csv").read_text() == "anchor,positive\nA dog.,A hound.\n"


def test_an_encoding_is_asked_for_and_taken(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faq.csv").write_bytes(
        "问题,答案\n怎么给绿萝浇水?,土干了再浇。\n图书馆几点关门?,晚上九点。\n".encode("gbk")
    )
    asked = invoke("analyze", "overlap", "faq.csv")
    assert "as gb18030 it reads 问题,答案" in asked.stderr
    assert "--encoding gb18030" in asked.stderr
    found = invoke("analyze", "overlap", "faq.csv", "--encoding", "gbk", "-f", "json")
    assert '"n_pairs": 2' in found.stdout


JUDGED = (
    "sentence1,sentence2,label\nA dog.,A dog.,1\nA cat.,A car.,0\nA hen.,A hen.,1\n"
    "A cow.,A sow.,2\n"
)


@pytest.fixture
def on_judged(invoke, tmp_path, monkeypatch, tiny_model_dir):
    """Return a function that runs a command beside the table of judged pairs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judged.csv").write_text(JUDGED)

    def run(*arguments):
        return invoke(*(tiny_model_dir if word == "MODEL" else word for word in arguments))

    return run


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["analyze", "overlap", "judged.csv", "-f", "csv"], ",2,"),
        (["encode", "judged.csv", "--pairs", "-o", "-", *MODEL], "A hen.,A hen.,1.000000\n"),
    ],
)
def test_pairs_of_other_labels_are_left_out_where_pairs_are_compared(arguments, kept, on_judged):
    found = on_judged(*arguments, "--keep-label", "1")
    assert "judged.csv: left out 2 rows with other labels" in found.stderr
    assert kept in found.stdout
    assert "A cow" not in found.stdout
    missing = on_judged(*arguments, "--keep-label", "yes")
    assert "no row has a label to keep; the labels are 0, 1, 2" in missing.stderr


SCORED = "left=sentence1,right=sentence2,score=label"


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval", "sts", "--pair-file", "judged.csv", "--columns", SCORED, *MODEL],
        ["eval", "transfer", "--task-file", "judged.csv", *MODEL],
        ["prepare", "duplicates", "judged.csv", "--kind", "exact", "-o", "d.csv"],
        ["train", "--train-file", "judged.csv", "--column", "sentence1", "--dry-run", *MODEL],
    ],
)
def test_labels_to_keep_are_refused_where_rows_are_no_pairs_to_keep(arguments, on_judged):
    outcome = on_judged(*arguments, "--keep-label", "1")
    assert outcome.exit_code == 2
    assert "--keep-label: has no use" in outcome.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["prepare", "sentences", "judged.csv", "-o", "judged.csv"],
        ["prepare", "pairs", "judged.csv", "-o", "./judged.csv"],
        ["prepare", "duplicates", "judged.csv", "--column", "sentence1", "-o", "judged.csv"],
        ["augment", "judged.csv", "--column", "1", "--method", "delete", "-o", "judged.csv"],
        ["analyze", "overlap", "judged.csv", "-o", "judged.csv"],
        ["eval", "sts", "--pair-file", "judged.csv", "-o", "judged.csv", *MODEL],
        ["eval", "sts", "--pair-file", "judged.csv", "--save-scores", "judged.csv", *MODEL],
    ],
)
def test_no_command_replaces_the_file_that_it_reads(arguments, on_judged, tmp_path):
    outcome = on_judged(*arguments, "--force")
    assert outcome.exit_code == 2
    assert "judged.csv is read by this command, and would be replaced" in outcome.stderr
    assert (tmp_path / "judged.csv").read_text() == JUDGED
