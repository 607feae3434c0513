"""The fixtures that several files share: tiny models, tiny data, and a runner for the command line."""

import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

import hub as small_hub
from helpers import LIMIT_S, SENTENCES, build_tiny_model, write_sts_folder

# Read on import: no test asks the real Hub, and only those with the fixture ``hub`` ask the small
# one.
os.environ |= {"HF_ENDPOINT": small_hub.ADDRESS, "HF_HUB_OFFLINE": "1", "no_proxy": "127.0.0.1"}
os.environ |= dict.fromkeys(("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"), str(int(LIMIT_S)))

# The same examples in every run, on machines of any speed, and nothing kept between runs.
settings.register_profile("simcse", deadline=None, derandomize=True, database=None)
settings.load_profile("simcse")

# Under nohup, or in the background of a script, signals are ignored, here and in the commands that
# tests start.
for _name, _handler in (
    ("SIGHUP", signal.SIG_DFL),
    ("SIGINT", signal.default_int_handler),
    ("SIGQUIT", signal.SIG_DFL),
):
    if (_number := getattr(signal, _name, None)) and signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Outcome:
    """What a command left behind: exit code and both streams."""

    exit_code: int
    stdout: str
    stderr: str


def pytest_collection_finish() -> None:
    """Leave what the tests import out of garbage collections, which took 0.3 s each."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True, scope="session")
def _forks() -> None:
    """Start the process that commands are forked from, if one of the tests needs it."""
    if "processes" in sys.modules:
        sys.modules["processes"].prepare_forks()


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the user's settings, cache and the Hub out of every test."""
    for name in [name for name in os.environ if name.startswith("SIMCSE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Return a function that runs the console command in this process: ``invoke("eval", "sts", input="...")``."""

    def run(*arguments: object, input: str | bytes = "") -> Outcome:  # noqa: A002 - named as in other runners
        from simcse_cli.commands.app import main

        data = input.encode() if isinstance(input, str) else input
        stdin = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        code: object = 0
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", stdin)
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            try:
                main([str(argument) for argument in arguments])
            except SystemExit as stop:
                code = stop.code or 0
        texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
        return Outcome(int(str(code)), *texts)

    return run


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Return the address of a cloud store whose files lie in ``tmp_path``."""
    from pyarrow import fs

    from simcse_cli.data import file_sets
    from simcse_cli.encoding import part_files
    from simcse_cli.files import inputs

    def file_system(address: object) -> tuple[fs.FileSystem, str]:
        return fs.LocalFileSystem(), str(address).replace("s3://bucket", str(tmp_path))

    for module in (file_sets, part_files, inputs):
        monkeypatch.setattr(module, "file_system", file_system)
    return "s3://bucket"


@pytest.fixture(scope="session")
def _tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "bert"
    build_tiny_model(folder)
    return folder


@pytest.fixture
def tiny_model_dir(_tiny_model_dir: Path, tmp_path: Path) -> Path:
    """Return a fresh copy of a random two-layer BERT of width 32 as a Hugging Face folder."""
    import shutil

    return Path(shutil.copytree(_tiny_model_dir, tmp_path / "tiny-bert"))


@pytest.fixture
def tiny_encoder(_tiny_model_dir: Path) -> Iterator[object]:
    """Return the tiny model as a ``SentenceEncoder`` with average pooling, a copy of its own per test."""
    from simcse_cli.models.checkpoint import load_encoder

    return load_encoder(_tiny_model_dir, pooler="avg", device="cpu")  # type: ignore[return-value]


@pytest.fixture
def sentences() -> list[str]:
    """Return two dozen English sentences of different lengths."""
    return list(SENTENCES)


@pytest.fixture
def sts_folder(tmp_path: Path) -> Path:
    """Return a SentEval folder with a few graded pairs in every STS task."""
    return write_sts_folder(tmp_path / "senteval")


@pytest.fixture(scope="session")
def _served_hub() -> Iterator[None]:
    with small_hub.serving():
        yield


@pytest.fixture
def hub(_served_hub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> small_hub.Hub:
    """Return an empty Hub that is online, with an empty cache; its clients do not sleep between attempts."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for module in ("utils._http", "file_download"):
        monkeypatch.setattr(f"huggingface_hub.{module}.time", small_hub.CLOCK)
    monkeypatch.setattr(small_hub.Handler, "hub", small_hub.Hub())
    return small_hub.Handler.hub


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder with real corpora; the test is skipped where it is missing."""
    given = os.environ.get("SIMCSE_DATA")
    candidates = [Path(given)] if given else []
    candidates.append(REPOSITORY.parent / "shared" / "data")
    for folder in candidates:
        if (folder / "senteval" / "downstream").is_dir():
            return folder
    pytest.skip("the real corpora are not here; give their folder as SIMCSE_DATA")
