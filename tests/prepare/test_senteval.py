import shutil

import pytest

from helpers import STS_PAIRS
from simcse_cli.data.senteval import expected_files
from simcse_cli.data.transfer_files import TRANSFER_ROWS
from simcse_cli.prepare.senteval import FileState, check_senteval
from simcse_cli.progress import SilentProgress

PATHS = [file.path for file in expected_files()]


def check(folder, **settings):
    return {c.expected.path: c for c in check_senteval(folder, progress=SilentProgress(), **settings)}


def bad(folder, **settings):
    return {path: c for path, c in check(folder, **settings).items() if c.state is not FileState.OK}


@pytest.fixture(scope="module")
def published(shared_data, tmp_path_factory):
    """Return a copy that tests may damage, and must mend."""
    folder = tmp_path_factory.mktemp("senteval")
    shutil.copytree(shared_data / "senteval", folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)
    return folder


def test_expected_files_agree_with_the_readers_counts():
    lines = {file.path: file.lines for file in expected_files()}
    for task, subsets in STS_PAIRS.items():
        for subset, n_pairs in subsets.items():
            pairs, gold = (lines[f"STS/{task}-en-test/STS.{kind}.{subset}.txt"] for kind in ("input", "gs"))
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
            assert ("digest" if state is FileState.ALTERED else f"{expected.lines:,}") in found[path].detail
    finally:
        file.write_bytes(original)


def test_check_senteval_names_the_line_with_too_few_columns(published):
    file = published / "downstream" / "STS" / "STS12-en-test" / "STS.input.MSRpar.txt"
    original = file.read_bytes()
    lines = original.split(b"\n")
    lines[6] = lines[6].replace(b"\t", b" ")
    try:
        file.write_bytes(b"\n".join(lines))
        found = bad(published)["STS/STS12-en-test/STS.input.MSRpar.txt"]
        assert found.state is FileState.MALFORMED
        assert found.detail == "line 7: 1 columns, expected at least 2"
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
