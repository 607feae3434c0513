import hashlib
import shutil
from dataclasses import replace

import pytest

from helpers import STS_PAIRS
from simcse_cli.data.senteval import ExpectedFile, expected_files
from simcse_cli.data.transfer_files import TRANSFER_ROWS
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.prepare import senteval
from simcse_cli.prepare.senteval import (
    FileCheck,
    FileState,
    check_senteval,
    check_task_names,
    require_published,
    senteval_outcome,
)
from simcse_cli.progress import SilentProgress

PATHS = [file.path for file in expected_files()]


def check(folder, **settings):
    return {
        c.expected.path: c for c in check_senteval(folder, progress=SilentProgress(), **settings)
    }


def bad(folder, **settings):
    return {path: c for path, c in check(folder, **settings).items() if c.state is not FileState.OK}


@pytest.fixture(scope="module")
def published(shared_data, tmp_path_factory):
    """Return a copy that tests may damage, and must mend."""
    folder = tmp_path_factory.mktemp("senteval")
    shutil.copytree(
        shared_data / "senteval", folder, dirs_exist_ok=True, copy_function=shutil.copyfile
    )
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)
    return folder


def test_expected_files_agree_with_the_readers_counts():
    lines = {file.path: file.lines for file in expected_files()}
    for task, subsets in STS_PAIRS.items():
        for subset, n_pairs in subsets.items():
            pairs, gold = (
                lines[f"STS/{task}-en-test/STS.{kind}.{subset}.txt"] for kind in ("input", "gs")
            )
            assert pairs == gold >= n_pairs
    assert lines["STS/STSBenchmark/sts-train.csv"] == 5749
    assert lines["SICK/SICK_test_annotated.txt"] == 4927 + 1
    assert lines["MRPC/msr_paraphrase_test.txt"] == TRANSFER_ROWS["MRPC"]["test"] + 1
    assert lines["SST/binary/sentiment-train"] == TRANSFER_ROWS["SST2"]["train"]


def test_check_senteval_accepts_the_published_folder(published):
    assert bad(published) == {}
    assert bad(published / "downstream") == {}


@pytest.mark.parametrize("path", PATHS)
def test_check_senteval_names_the_file_that_is_missing_cut_or_altered(published, path):
    file = published / "downstream" / path
    original = file.read_bytes()
    expected = next(expected for expected in expected_files() if expected.path == path)
    damaged = {
        FileState.MISSING: None,
        FileState.WRONG_LENGTH: original[: len(original) // 2],
        FileState.ALTERED: b"x" + original,
    }
    try:
        for state, content in damaged.items():
            file.unlink() if content is None else file.write_bytes(content)
            found = bad(published, tasks=[expected.task])
            assert list(found) == [path]
            assert found[path].state is state
            assert ("digest" if state is FileState.ALTERED else f"{expected.lines:,}") in found[
                path
            ].detail
    finally:
        file.write_bytes(original)


def test_check_senteval_accepts_other_line_ends_and_other_versions_on_request(published):
    file = published / "downstream" / "TREC" / "TREC_10.label"
    original = file.read_bytes()
    try:
        file.write_bytes(original.replace(b"\n", b"\r\n"))
        assert bad(published) == {}
        file.write_bytes(original.replace(b"How", b"Why"))
        assert list(bad(published)) == ["TREC/TREC_10.label"]
        assert bad(published, content=False) == {}
    finally:
        file.write_bytes(original)


def test_check_senteval_of_some_tasks_reads_only_their_files(sts_folder):
    paths = check(sts_folder, tasks=["STSBenchmark", "MR"])
    assert {path.split("/")[0] for path in paths} == {"STS", "MR"}
    assert paths["MR/rt-polarity.pos"].state is FileState.MISSING


GOOD = b"a\tb\nc\td\n"
WHOLE = ExpectedFile("STS/whole.txt", "A", 2, 2, hashlib.sha256(GOOD).hexdigest())
SMALL = [
    WHOLE,
    replace(WHOLE, path="STS/unused.txt", task="-"),
    replace(WHOLE, path="STS/missing.txt", task="-", lines=1200),
    replace(WHOLE, path="STS/folder.txt"),
    replace(WHOLE, path="STS/cut.txt", task="B", lines=1200),
    replace(WHOLE, path="STS/narrow.txt", lines=3),
    replace(WHOLE, path="STS/altered.txt", lines=1),
]


@pytest.fixture
def small_folder(tmp_path, monkeypatch):
    """Return a folder with one file in every state, and make its files the expected ones."""
    monkeypatch.setattr(senteval, "expected_files", lambda: SMALL)
    (tmp_path / "STS/folder.txt").mkdir(parents=True)
    contents = {
        "whole": GOOD,
        "unused": GOOD,
        "cut": b"",
        "narrow": b"a\tb\nc\nd\n",
        "altered": b"x\ty\n",
    }
    for name, content in contents.items():
        (tmp_path / f"STS/{name}.txt").write_bytes(content)
    return tmp_path


def test_small_folder_is_shown_with_what_was_found_and_expected(small_folder):
    checks = check_senteval(small_folder, progress=SilentProgress())
    outcome = senteval_outcome(small_folder, checks)
    other = hashlib.sha256(b"x\ty\n").hexdigest()
    expected = [
        ("missing", None, "missing", None, 1200, "expected 1,200 lines"),
        ("folder", "A", "unreadable", None, 2, "Is a directory"),
        ("cut", "B", "wrong length", 0, 1200, "0 lines, expected 1,200"),
        ("narrow", "A", "malformed", 3, 3, "line 2: 1 columns, expected at least 2"),
        (
            "altered",
            "A",
            "altered",
            1,
            1,
            f"content digest {other[:12]}…, expected {WHOLE.sha256[:12]}…",
        ),
    ]
    keys = ("path", "task", "state", "lines", "expected_lines", "detail")
    bad = [dict(zip(keys, (f"STS/{name}.txt", *rest), strict=True)) for name, *rest in expected]
    good = [{"path": f"STS/{name}.txt", "task": task, "state": "ok", "lines": 2, "expected_lines": 2, "detail": None}
            for name, task in (("whole", "A"), ("unused", None))]  # fmt: skip
    assert outcome.payload == {"data_dir": str(small_folder), "ok": False, "files": [*good, *bad]}
    assert outcome.reports[0].rows == bad
    assert (
        check_senteval(small_folder, content=False, progress=SilentProgress())[-1].state
        is FileState.OK
    )


def test_small_folder_as_published_is_counted_by_task(small_folder):
    checks = [FileCheck(file, FileState.OK, file.lines) for file in SMALL]
    outcome = senteval_outcome(small_folder, checks)
    assert outcome.payload["ok"]
    assert outcome.reports[0].rows == [
        {"task": "A", "files": 4, "lines": 8},
        {"task": "B", "files": 1, "lines": 1200},
        {"task": "(not evaluated)", "files": 2, "lines": 1202},
    ]
    require_published(small_folder, checks)


@pytest.mark.parametrize(("n_bad", "more"), [(8, ""), (10, " and 2 more")])
def test_require_published_names_eight_small_files(tmp_path, n_bad, more):
    checks = [
        FileCheck(replace(WHOLE, path=str(i)), FileState.MISSING, detail="gone")
        for i in range(n_bad)
    ]
    named = "; ".join(f"{i}: missing, gone" for i in range(8))
    with pytest.raises(DataError) as caught:
        require_published(tmp_path, [FileCheck(WHOLE, FileState.OK), *checks])
    start = f"{tmp_path}: {n_bad} of {n_bad + 1} files are not as published: "
    assert str(caught.value) == start + named + more


def test_check_task_names_takes_those_of_the_small_list(small_folder):
    assert check_task_names("B, A") == ["B", "A"]
    with pytest.raises(ConfigError, match="no task '-'") as caught:
        check_task_names("-")
    assert caught.value.hint == "tasks are A, B"
