import errno
import json
import os
import shlex
import shutil
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from pyarrow import dataset, parquet

from helpers import SENTENCES, CountingProgress, build_tiny_model, sigterm_in_second_window
from simcse_cli.encoding import encode_file, formats, part_files, parts, text_encoder
from simcse_cli.encoding.merge import merge_shards
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.encoding.parts import count_parts
from simcse_cli.encoding.vector_writer import require_same
from simcse_cli.errors import OutputError
from simcse_cli.files.locks import sole_writer
from simcse_cli.machine import precision

ENDINGS = ("npy", "npz", "safetensors", "parquet", "jsonl")
LINES = [f"{sentence} {number}" for number, sentence in enumerate(SENTENCES * 2)]


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch):
    monkeypatch.setattr(parts, "WINDOW", 8)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("\n".join(LINES) + "\nthe last line has no end")
    return path


@pytest.fixture
def encode(invoke, source, tiny_model_dir, tmp_path, monkeypatch):
    """Return a function that encodes the source, or another input, where relative names mean ``tmp_path``."""
    monkeypatch.chdir(tmp_path)

    def run(output, *arguments, source=source, model=tiny_model_dir):
        return invoke("encode", source, "-o", output, "-m", model, "--pooler", "avg", *arguments)

    return run


def encode_shards(encode, output, of, *arguments):
    for number in range(1, of + 1):
        outcome = encode(output, "--shard", f"{number}/{of}", *arguments)
        assert outcome.exit_code == 0, outcome.stderr


@pytest.mark.parametrize("ending", ENDINGS)
def test_merged_shards_are_the_file_of_one_process(encode, invoke, tmp_path, ending):
    assert encode(f"one.{ending}").exit_code == 0
    encode_shards(encode, f"v.{ending}", 3)
    outcome = invoke("encode", "--merge", f"v.{ending}")
    assert outcome.exit_code == 0, outcome.stderr
    assert (tmp_path / f"v.{ending}").read_bytes() == (tmp_path / f"one.{ending}").read_bytes()
    assert (tmp_path / f"v.{ending}.json").read_bytes() == (
        tmp_path / f"one.{ending}.json"
    ).read_bytes()
    assert f"wrote v.{ending}: 49 x 32 float32 from 3 shards" in outcome.stderr
    progress = CountingProgress()
    merge_shards(tmp_path / f"v.{ending}", None, force=True, progress=progress)
    assert progress.n_done == progress.n_expected == 49


def test_parts_have_up_to_eight_windows():
    """A window each up to 63, then as many as give 32 parts, up to 8."""
    found = [count_parts(8 * n_windows) for n_windows in (0, 1, 63, 64, 65, 256, 257, 288)]
    assert found == [1, 1, 63, 32, 33, 32, 33, 36]


@pytest.mark.parametrize("dtype", ["float16", "int8", "binary"])
@pytest.mark.parametrize("ending", ["npy", "jsonl"])
def test_other_number_types_come_through_a_merge(encode, invoke, tmp_path, dtype, ending):
    encode(f"one.{ending}", "--dtype", dtype)
    encode_shards(encode, f"v.{ending}", 2, "--dtype", dtype)
    assert invoke("encode", "--merge", f"v.{ending}").exit_code == 0
    assert (tmp_path / f"v.{ending}").read_bytes() == (tmp_path / f"one.{ending}").read_bytes()


@pytest.mark.parametrize("ending", ENDINGS)
def test_more_shards_than_windows_leave_empty_ones(encode, invoke, tmp_path, ending):
    encode(f"one.{ending}")
    encode_shards(encode, f"v.{ending}", 9)
    side = json.loads((tmp_path / f"v.shard-1-of-9.{ending}.json").read_text())
    assert (side["rows"], side["n_rows"], side["input_rows"]) == ([0, 0], 0, 49)
    said = [encode(f"v.{ending}", "--shard", f"{number}/9", "--force").stderr for number in (1, 2)]
    why = "shard 1/9 is empty: a shard is of whole windows of 8 rows, and the input has 7"
    assert why in " ".join(said[0].split())
    assert "is empty" not in said[1]
    assert invoke("encode", "--merge", f"v.{ending}").exit_code == 0
    assert (tmp_path / f"v.{ending}").read_bytes() == (tmp_path / f"one.{ending}").read_bytes()


def test_killed_shard_resumes_by_itself(encode, invoke, tmp_path, monkeypatch):
    encode("one.npy")
    with sigterm_in_second_window(monkeypatch):
        assert encode("v.npy", "--shard", "1/2").exit_code == 128 + signal.SIGTERM
    assert encode("v.npy", "--shard", "2/2").exit_code == 0
    refused = invoke("encode", "--merge", "v.npy")
    assert refused.exit_code == 1
    assert "of 2 shards 1 are missing: 1" in refused.stderr
    assert "--shard 1/2 --resume" in refused.stderr
    assert "continuing" in encode("v.npy", "--shard", "1/2", "--resume").stderr
    assert "is already finished" in encode("v.npy", "--shard", "1/2", "--resume").stderr
    assert invoke("encode", "--merge", "v.npy").exit_code == 0
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()


def test_the_fix_of_a_missing_shard_has_the_settings_of_the_others(encode, invoke, tmp_path):
    lines = [json.dumps({"my text": line}) for line in LINES]
    (tmp_path / "a table.jsonl").write_text("\n".join(lines) + "\n")
    settings = ("--column", "my text", "--max-length", "12", "--normalize", "--dtype", "float16")
    settings += ("--prompt", "It's: ", "--truncate-dim", "8")
    outcome = encode("one.npy", *settings, source="a table.jsonl")
    assert outcome.exit_code == 0, outcome.stderr
    encode("v.npy", *settings, "--shard", "2/2", source="a table.jsonl")
    refused = invoke("encode", "--merge", "v.npy")
    fix = refused.stderr.partition("fix: ")[2]
    again = invoke(*shlex.split(fix)[1:])
    assert again.exit_code == 0, (fix, again.stderr)
    outcome = invoke("encode", "--merge", "v.npy")
    assert outcome.exit_code == 0, outcome.stderr
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()


def test_vectors_of_unlike_processors_are_not_mixed(encode, invoke, tmp_path, monkeypatch):
    """What ``auto`` stands for depends on the processor; in bfloat16, so does the rounding."""
    for number, name in enumerate(("avx512, amx", "avx2"), start=1):
        monkeypatch.setattr(text_encoder, "capability", lambda name=name: name)
        assert encode("v.npy", "--shard", f"{number}/2", "--precision", "bf16").exit_code == 0
    outcome = invoke("encode", "--merge", "v.npy")
    assert outcome.exit_code == 1
    assert "has capability 'avx2', v.shard-1-of-2.npy has 'avx512, amx'" in " ".join(
        outcome.stderr.split()
    )
    for number, is_fast in enumerate((True, False), start=1):
        monkeypatch.setattr(precision, "has_fast_bf16", lambda _, is_fast=is_fast: is_fast)
        encode("v.npy", "--shard", f"{number}/2", "--precision", "auto", "--force")
    assert "has precision 'fp32'" in invoke("encode", "--merge", "v.npy").stderr


def test_shards_of_other_columns_are_not_merged(invoke, tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "WINDOW", 8)
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"A subject of mail {n}.,And the body of {n}.\n" for n in range(16))
    (tmp_path / "mails.csv").write_text(f"subject,body\n{rows}")
    for number, column in enumerate(("subject", "body"), start=1):
        shard = ["--shard", f"{number}/2", "--column", column, "--model", tiny_model_dir]
        done = invoke("encode", "mails.csv", "-o", "v.npy", *shard, "--device", "cpu")
        assert done.exit_code == 0, done.stderr
    merged = " ".join(invoke("encode", "--merge", "v.npy").stderr.split())
    assert "has column 'body', v.shard-1-of-2.npy has 'subject'" in merged


def test_merge_refuses_what_does_not_belong_together(encode, invoke, source, tmp_path):
    encode_shards(encode, "v.npy", 2)
    second = tmp_path / "v.shard-2-of-2.npy"

    def message():
        outcome = invoke("encode", "--merge", "v.npy")
        assert outcome.exit_code == 1
        assert not (tmp_path / "v.npy").exists()
        return outcome.stderr

    encode("v.npy", "--shard", "2/2", "--normalize", "--force")
    assert "has normalize True" in message()
    other = tmp_path / "other"
    build_tiny_model(other, seed=1)
    assert encode("v.npy", "--shard", "2/2", "--force", model=other).exit_code == 0
    assert "has model_digest" in message()
    kept = source.read_text()
    source.write_text(kept.upper())
    encode("v.npy", "--shard", "2/2", "--force")
    assert "has input_sha256" in message()
    source.write_text(kept)
    encode("v.npy", "--shard", "2/2", "--force")
    whole = second.read_bytes()
    second.write_bytes(whole[:-4])
    assert "v.shard-2-of-2.npy cannot be read" in message()
    second.write_bytes(whole)
    side = json.loads((tmp_path / "v.shard-2-of-2.npy.json").read_text())
    (tmp_path / "v.shard-2-of-2.npy.json").write_text(json.dumps(side | {"rows": [16, 41]}))
    assert "need it to start at 24" in message()
    (tmp_path / "v.shard-2-of-2.npy.json").write_text(json.dumps(side))
    encode("v.npy", "--shard", "1/3")
    assert "holds sets of 2 and 3 shards" in message()
    for of, missing in (
        (11, "2, 3, 4, 5, 6, 7, 8, 9, 10, 11 "),
        (12, "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ... "),
    ):
        encode(f"{of}.npy", "--shard", f"1/{of}")
        found = " ".join(invoke("encode", "--merge", f"{of}.npy").stderr.split())
        assert f"of {of} shards {of - 1} are missing: {missing}" in found
    (tmp_path / "v.shard-1-of-3.npy").unlink()
    (tmp_path / "v.npy").write_bytes(b"precious")
    assert invoke("encode", "--merge", "v.npy").exit_code == 1
    assert invoke("encode", "--merge", "v.npy", "--force").exit_code == 0
    assert len(np.load(tmp_path / "v.npy")) == 49


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shard", "5/4"), "need I/N"),
        (("--shard", "0/4"), "need I/N"),
        (("--shard", "a"), "need I/N"),
        (("--shard", "1/2", "--index", "v.idx"), "one file of one process"),
        (("--shard", "1/2", "--engine", "ray"), "cuts the input itself"),
        (("--workers", "2"), "without --engine ray"),
        (("--id-column", "id", "--shard", "1/2"), "with columns"),
        (("--dtype", "int8", "-"), "which prints plain numbers: give a file"),
        (("--resume", "-"), "which prints plain numbers: give a file"),
    ],
)
def test_options_that_exclude_each_other(encode, tmp_path, arguments, message):
    """A last argument of - is the output."""
    is_stdout = arguments[-1] == "-"
    outcome = encode(*(("-", *arguments[:-1]) if is_stdout else ("v.npy", *arguments)))
    assert outcome.exit_code == 2
    assert message in " ".join(outcome.stderr.split())
    assert not list(tmp_path.glob("v.*"))


def test_shards_need_an_input_that_can_be_read_again(encode, invoke):
    outcome = encode("v.npy", "--shard", "1/2", source="-")
    assert outcome.exit_code == 2
    assert "read again" in outcome.stderr
    assert (
        "nowhere.txt does not exist"
        in encode("v.npy", "--shard", "1/2", source="nowhere.txt").stderr
    )
    refused = " ".join(invoke("encode", "--merge", "v.npy").stderr.split())
    assert "holds no shard of v.npy" in refused
    assert "simcse encode INPUT -o v.npy --shard 1/4" in refused
    assert "need an input" in invoke("encode", "-o", "v.npy").stderr


def test_folder_of_parts_is_a_data_set_with_ids(encode, invoke, tmp_path):
    encode("one.npy")
    (tmp_path / "vectors").mkdir()
    refused = " ".join(invoke("encode", "vectors", "--merge", "merged.npy").stderr.split())
    assert "vectors holds no parts" in refused
    assert "simcse encode INPUT -o vectors --shard 1/4" in refused
    outcome = encode("vectors")
    assert outcome.exit_code == 0, outcome.stderr
    assert "wrote 7 of 7 parts in vectors, 49 rows in all" in outcome.stderr
    table = dataset.dataset(tmp_path / "vectors").to_table()
    one = np.load(tmp_path / "one.npy")
    assert table["id"].to_pylist() == list(range(49))
    assert table["text"].to_pylist()[:48] == LINES
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), np.float32), one)
    names = sorted(path.name for path in (tmp_path / "vectors").iterdir())
    assert names[-1] == "part-00007-of-00007.parquet"
    assert names[0] == "_part-00001-of-00007.parquet.json"
    merged = invoke("encode", "vectors", "--merge", "merged.npy")
    assert merged.exit_code == 0, merged.stderr
    assert (tmp_path / "merged.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()
    assert invoke("encode", "vectors", "--merge", "merged.parquet").exit_code == 0
    assert parquet.read_table(tmp_path / "merged.parquet")["id"].to_pylist() == list(range(49))
    (tmp_path / "vectors" / "part-00003-of-00007.parquet").unlink()
    refused = " ".join(invoke("encode", "vectors", "--merge", "w.npy").stderr.split())
    assert "vectors: of 7 shards 1 are missing: 3" in refused
    assert f"simcse encode {tmp_path / 'input.txt'} -o vectors " in refused


def test_a_file_without_ending_takes_no_parts(encode, tmp_path):
    for device in ("/dev/null", "/dev/stdout"):
        for more in ((), ("--force",)):
            refused = encode(device, *more)
            assert refused.exit_code == 1
            assert f"{device} is no regular file" in refused.stderr
            assert "use -o - for standard output" in refused.stderr
    (tmp_path / "notes").write_text("mine")
    assert "notes exists already" in encode("notes").stderr
    assert "unknown ending" in encode("notes", "--force").stderr
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_part_or_shard_has_one_writer(encode, tmp_path):
    for output, file, arguments in (
        ("v", "v/part-00001-of-00007.parquet", ()),
        ("deep/er.npy", "deep/er.shard-1-of-2.npy", ("--shard", "1/2")),
    ):
        with sole_writer(tmp_path / file):
            assert "is being written by process" in encode(output, *arguments).stderr
        assert encode(output, *arguments).exit_code == 0
    assert encode("deeper/in/v").exit_code == 0


def test_a_launched_process_is_told_that_it_is_alone_unless_it_has_a_shard(encode, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert "this is one process" in encode("v.npy").stderr
    assert "this is one process" not in encode("v.npy", "--shard", "1/2").stderr


def test_jobs_fill_one_folder_and_resume_what_is_missing(encode, tmp_path, source):
    assert encode("one").exit_code == 0
    encode_shards(encode, "v", 3)
    parts = sorted((tmp_path / "v").glob("part-*"))
    assert [p.read_bytes() for p in parts] == [
        (tmp_path / "one" / p.name).read_bytes() for p in parts
    ]
    assert len(parts) == 7
    refused = encode("v")
    assert refused.exit_code == 1
    assert "--resume" in refused.stderr
    parts[3].unlink()
    before = parts[0].stat().st_mtime_ns
    assert encode("v", "--resume").exit_code == 0
    assert parts[3].read_bytes() == (tmp_path / "one" / parts[3].name).read_bytes()
    assert parts[0].stat().st_mtime_ns == before
    assert "has normalize False, not True" in encode("v", "--resume", "--normalize").stderr
    source.write_text("one line\n")
    assert "a part of another input" in encode("v", "--resume").stderr
    assert encode("v", "--force").exit_code == 0
    assert sorted(p.name for p in (tmp_path / "v").iterdir()) == [
        "_part-00001-of-00001.parquet.json",
        "part-00001-of-00001.parquet",
    ]


def test_processes_of_a_group_share_the_parts_of_a_folder(encode, tmp_path, monkeypatch):
    encode("one")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, n_parts in (("0", 3), ("1", 7)):
        monkeypatch.setenv("RANK", rank)
        assert encode("v").exit_code == 0
        parts = sorted((tmp_path / "v").glob("part-*"))
        assert [p.read_bytes() for p in parts] == [
            (tmp_path / "one" / p.name).read_bytes() for p in parts
        ]
        assert len(parts) == n_parts


def test_id_column_names_the_rows(encode, tmp_path):
    rows = [{"key": f"k{number}", "caption": text} for number, text in enumerate(SENTENCES)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("--column", "caption", "--id-column", "key")
    for output in ("v", "v.parquet", "v.jsonl"):
        outcome = encode(output, *given, source="t.jsonl")
        assert outcome.exit_code == 0, outcome.stderr
    keys = [row["key"] for row in rows]
    assert dataset.dataset(tmp_path / "v").to_table()["id"].to_pylist() == keys
    assert parquet.read_table(tmp_path / "v.parquet")["id"].to_pylist() == keys
    lines = (tmp_path / "v.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == keys
    again = encode(
        "v.jsonl", "--column", "caption", "--id-column", "caption", "--resume", source="t.jsonl"
    )
    assert "v.jsonl exists already and has id_column" in again.stderr
    outcome = encode("w", "--column", "caption", "--id-column", "nothing", source="t.jsonl")
    assert outcome.exit_code == 1
    assert "no column nothing; there are key, caption" in outcome.stderr


def test_a_file_address_is_the_path_in_it(encode, invoke, tmp_path, source, tiny_model_dir):
    encode("one.npy")
    place = f"file://{tmp_path}"
    for number in (1, 2):
        outcome = encode(f"{place}/v.npy", "--shard", f"{number}/2", source=f"{place}/input.txt")
        assert outcome.exit_code == 0, outcome.stderr
    assert invoke("encode", "--merge", f"{place}/v.npy").exit_code == 0
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()
    given = ("--embeddings", f"{place}/v.npy", "--query", "rain", "-o", f"{place}/found.json")
    outcome = invoke("analyze", "search", source, "-m", tiny_model_dir, "--pooler", "avg", *given)
    assert outcome.exit_code == 0, outcome.stderr
    assert (tmp_path / "found.json").is_file()
    assert encode(f"{place}/w.jsonl").exit_code == 0
    assert (tmp_path / "w.jsonl").is_file()
    assert not (tmp_path / "file:").exists()


def test_an_address_that_cannot_be_written_as_asked_is_refused(encode, invoke, tmp_path, bucket):
    refused = encode(f"{bucket}/v.npy")
    assert refused.exit_code == 2
    assert "takes a folder of parquet parts" in refused.stderr
    assert f"use -o {bucket}/v, or" in " ".join(refused.stderr.split())
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\nA cat.\tA dog.\n")
    for outcome in (
        encode("gopher://host/v.npy"),
        encode("gopher://host/v"),
        encode("u.npy", "--index", f"{bucket}/v.index"),
        encode(f"{bucket}/v.tsv", "--pairs", source="pairs.tsv"),
        invoke("encode", "--merge", f"{bucket}/v.npy"),
        invoke("train", "-o", f"{bucket}/run", "--train-file", "input.txt", "--mode", "unsup"),
    ):
        assert outcome.exit_code == 1
        assert "is an address, need a path on this machine" in outcome.stderr
    assert not list(tmp_path.glob("*:*"))


def test_address_stands_for_a_file_or_folder(encode, tmp_path, source, tiny_model_dir, bucket):
    address_of_source = f"{bucket}/{source.name}"
    encode("one")
    encode("one.npy")
    assert encode("v.npy", source=address_of_source).exit_code == 0
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()
    outcome = encode(f"{bucket}/there/v", source=address_of_source)
    assert outcome.exit_code == 0, outcome.stderr
    made = {p.name: p.read_bytes() for p in (tmp_path / "there" / "v").glob("part-*")}
    assert made == {p.name: p.read_bytes() for p in (tmp_path / "one").glob("part-*")}
    outcome = encode(f"{bucket}/there/v", source=address_of_source)
    assert outcome.exit_code == 1
    (tmp_path / "there" / "v" / "_part-00002-of-00007.parquet.json").unlink()
    (tmp_path / "there" / "v" / "part-00002-of-00007.parquet").unlink()
    kept = tmp_path / "there" / "v" / "part-00003-of-00007.parquet"
    kept.write_bytes(b"not touched by --resume")
    address, progress = f"{bucket}/there/v", CountingProgress()
    options = EncodeOptions(
        output=address, resume=True, model=str(tiny_model_dir), pooler="avg", force_pooler=True
    )
    encode_file.encode_file(address_of_source, options, write=print, progress=progress)
    assert progress.n_done == progress.n_expected == 49
    assert kept.read_bytes() == b"not touched by --resume"
    assert encode(address, "--force", source=address_of_source).exit_code == 0
    assert made == {p.name: p.read_bytes() for p in (tmp_path / "there" / "v").glob("part-*")}
    missing = encode("w.npy", source=f"{bucket}/nowhere.txt")
    assert missing.exit_code == 1
    assert "nowhere.txt cannot be read" in missing.stderr


def test_a_part_that_could_not_be_replaced_at_an_address_is_encoded_by_resume(
    encode, tmp_path, monkeypatch, bucket
):
    address, part = f"{bucket}/v", tmp_path / "v" / "part-00003-of-00007.parquet"
    assert encode(address).exit_code == 0
    content = part.read_bytes()

    def broken(source, target, size):
        if source.name.endswith(part.name):
            raise OSError(errno.EIO, "the connection has ended")
        shutil.copyfileobj(source, target, size)

    with monkeypatch.context() as patch:
        patch.setattr(part_files, "shutil", SimpleNamespace(copyfileobj=broken))
        assert encode(address, "--force").exit_code != 0
    assert not part.exists()
    assert encode(address, "--resume").exit_code == 0
    assert part.read_bytes() == content


def test_parts_of_another_input_may_be_removed_by_another_process(encode, tmp_path, monkeypatch):
    assert encode("v").exit_code == 0
    stale = tmp_path / "v" / "part-00001-of-00009.parquet"
    stale.touch()
    removers = part_files._removers_by_name

    def first_removed_elsewhere(folder):
        found = removers(folder)
        stale.unlink()
        return found

    monkeypatch.setattr(part_files, "_removers_by_name", first_removed_elsewhere)
    outcome = encode("v", "--force")
    assert outcome.exit_code == 0, outcome.stderr


def test_folder_as_input_gives_the_vectors_of_its_files_in_order(encode, invoke, tmp_path):
    encode("one.npy")
    folder = tmp_path / "texts"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("\n".join(LINES[:11]) + "\n")
    (folder / "b.txt").write_text("\n".join(LINES[11:30]))
    (folder / "empty.txt").write_text("")
    (folder / "sub" / "c.txt").write_text(
        "\n".join([*LINES[30:], "the last line has no end"]) + "\n"
    )
    (folder / "_SUCCESS").write_text("passed over")
    (folder / "notes.md").write_text("passed over")
    for source in ("texts", "texts/**/*.txt"):
        outcome = encode("v.npy", "--force", source=source)
        assert outcome.exit_code == 0, outcome.stderr
        assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()
    side = json.loads((tmp_path / "v.npy.json").read_text())
    assert side["files"] == {"texts/a.txt": 11, "texts/b.txt": 19, "texts/sub/c.txt": 19}
    assert encode("x.npy", source="texts/*.txt").exit_code == 0
    side = json.loads((tmp_path / "x.npy.json").read_text())
    assert side["files"] == {"texts/a.txt": 11, "texts/b.txt": 19}
    assert encode("x.npy", "--force", source="texts/a.txt").exit_code == 0
    assert "files" not in json.loads((tmp_path / "x.npy.json").read_text())
    assert encode("v.npy", "--force", source="texts").exit_code == 0
    encode_shards(lambda *a: encode(*a, source="texts"), "w.npy", 2)
    first = json.loads((tmp_path / "w.shard-1-of-2.npy.json").read_text())
    assert first["files"] == {"texts/a.txt": 11, "texts/b.txt": 13}
    assert invoke("encode", "--merge", "w.npy").exit_code == 0
    assert (tmp_path / "w.npy.json").read_bytes() == (tmp_path / "v.npy.json").read_bytes()
    inside = encode("texts/v", source="texts")
    assert inside.exit_code == 2
    assert "is in the input folder" in inside.stderr


@pytest.mark.parametrize("ending", ["npy", "safetensors", "parquet", "jsonl"])
def test_merge_finds_exchanged_and_damaged_shards(encode, invoke, source, tmp_path, ending):
    source.write_text("".join(f"{line}\n" for line in LINES[:32]))
    encode_shards(encode, f"v.{ending}", 2)
    first, second = (tmp_path / f"v.shard-{number}-of-2.{ending}" for number in (1, 2))
    assert first.stat().st_size
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    outcome = invoke("encode", "--merge", f"v.{ending}")
    assert (outcome.exit_code, (tmp_path / f"v.{ending}").exists()) == (1, False)
    assert "is not what its side file describes" in outcome.stderr
    first.write_bytes(one)
    second.write_bytes(other)
    place = other.index(b'"vector": [') + 12 if ending == "jsonl" else len(other) // 3
    flipped = bytearray(other)
    flipped[place] ^= 1
    second.write_bytes(flipped)
    assert invoke("encode", "--merge", f"v.{ending}").exit_code == 1
    second.write_bytes(other)
    assert invoke("encode", "--merge", f"v.{ending}").exit_code == 0


def test_merge_refuses_shards_that_another_job_replaces(
    encode, invoke, source, tmp_path, monkeypatch
):
    encode_shards(encode, "v.npy", 2)
    second = tmp_path / "v.shard-2-of-2.npy"
    read_blocks = formats.read_blocks

    def replace_meanwhile(path, *details):
        if path.name == second.name:
            (tmp_path / "new").write_bytes(second.read_bytes())
            (tmp_path / "new").rename(second)
        return read_blocks(path, *details)

    monkeypatch.setattr(formats, "read_blocks", replace_meanwhile)
    outcome = invoke("encode", "--merge", "v.npy")
    assert outcome.exit_code == 1
    assert "has changed while it was read" in outcome.stderr
    assert not (tmp_path / "v.npy").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ([], "is no side file of a shard"),
        (3, "is no side file of a shard"),
        ({"dtype": "float7"}, "json: dtype"),
        ({"dim": "x"}, "json: dim"),
        ({"n_rows": "x"}, "json: n_rows"),
        ({"input_rows": "x"}, "json: input_rows"),
        ({"rows": "x"}, "json: rows"),
        ({"files": 3}, "json: files"),
        ({"rows": [0]}, "rows, n_rows or dim is out of range"),
        ({"dim": 0}, "rows, n_rows or dim is out of range"),
        ({"n_rows": -1}, "rows, n_rows or dim is out of range"),
        *((key, f"has no {key}") for key in ("dtype", "dim", "n_rows", "input_rows", "rows")),
    ],
)
def test_merge_refuses_side_files_that_are_none(encode, invoke, tmp_path, change, message):
    encode_shards(encode, "v.npy", 2)
    path = tmp_path / "v.shard-1-of-2.npy.json"
    side = json.loads(path.read_text())
    if isinstance(change, str):
        del side[change]
        change = {}
    path.write_text(json.dumps(side | change if isinstance(change, dict) else change))
    outcome = invoke("encode", "--merge", "v.npy")
    assert outcome.exit_code == 1
    found = " ".join(outcome.stderr.split())
    assert "v.shard-1-of-2.npy.json" in found
    assert message in found


def test_merge_refuses_a_pipe_in_place_of_a_shard(encode, invoke, tmp_path):
    encode_shards(encode, "v.npy", 2)
    (tmp_path / "v.shard-1-of-2.npy").unlink()
    os.mkfifo(tmp_path / "v.shard-1-of-2.npy")
    outcome = invoke("encode", "--merge", "v.npy")
    assert outcome.exit_code == 1
    assert "is no file" in outcome.stderr


def test_a_finished_output_of_1_0_0_is_known_again():
    """It recorded no capability, and "auto" for the precision that it chose."""
    facts = {"model_digest": "a", "precision": "bf16", "capability": "AVX512"}
    require_same("v.npy", facts, facts)
    require_same("v.npy", {"model_digest": "a", "precision": "auto"}, facts)
    require_same("v.npy", {"model_digest": "a", "precision": "bf16"}, facts)
    for key in facts:
        with pytest.raises(OutputError, match=f"has {key} "):
            require_same("v.npy", facts | {key: "other"}, facts)


def test_each_empty_text_is_counted_once(encode, tmp_path, source):
    """The first row is looked at before the parts are read."""
    source.write_text(f"\n{source.read_text()}\n\n")
    told = encode("v").stderr + encode("w.npy", "--shard", "1/2").stderr
    assert "input.txt: 2 texts are empty" in told
    assert "input.txt: 1 text is empty" in told


def test_ids_of_parts_come_through_a_merge_into_a_file_without_columns(
    encode, invoke, tmp_path, source
):
    table = tmp_path / "table.csv"
    table.write_text("id,text\n" + "".join(f"t{i},{line}\n" for i, line in enumerate(LINES)))
    for output in ("parts", "one.npy"):
        assert encode(output, "--id-column", "id", source=table).exit_code == 0
    (tmp_path / "v.npy.ids.jsonl").write_text("mine")
    refused = invoke("encode", "--merge", tmp_path / "v.npy", tmp_path / "parts")
    assert "v.npy.ids.jsonl exists already" in " ".join(refused.stderr.split())
    (tmp_path / "v.npy.ids.jsonl").unlink()
    assert invoke("encode", "--merge", tmp_path / "v.npy", tmp_path / "parts").exit_code == 0
    for ending in ("", ".ids.jsonl"):
        joined, one = (tmp_path / f"{name}.npy{ending}" for name in ("v", "one"))
        assert joined.read_bytes() == one.read_bytes()
