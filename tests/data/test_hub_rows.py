"""Datasets of the Hub: which rows are read, and what is said when they cannot be."""

import pytest

from hub import CLOCK, Fault
from simcse_cli.data.jobs import Job
from simcse_cli.data.table import Table
from simcse_cli.errors import DataError

PAGES, ROWS = "/someone/rows", "/train.csv"


@pytest.fixture
def rows(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.utils.file_utils.time", CLOCK)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.csv").write_text("text\nA cat.\nA dog.\n")
    (tmp_path / "rows" / "test.csv").write_text("text\nA bird.\n")
    hub.put("someone/rows", tmp_path / "rows")
    return hub


def test_a_split_is_read_by_name(rows):
    assert list(Table("hf://someone/rows", Job.TEXTS).texts()) == ["A cat.", "A dog."]
    assert list(Table("hf://someone/rows:test", Job.TEXTS).texts()) == ["A bird."]


@pytest.mark.parametrize(
    ("source", "fault", "message", "hint"),
    [
        ("rows:dev", None, "Bad split: dev. Available splits: ['train', 'test']", ":SPLIT"),
        ("rows@de", None, "BuilderConfig 'de' not found. Available: ['default']", "@CONFIG"),
        (
            "none",
            None,
            "the Hugging Face Hub has no dataset someone/none, or it is private",
            "HF_TOKEN",
        ),
        (
            "rows",
            Fault("", 401, {"X-Error-Message": "Invalid credentials in header"}),
            "answered 401",
            "token",
        ),
        (
            "rows",
            Fault("", 403, {"X-Error-Code": "GatedRepo"}),
            "access to the dataset someone/rows",
            "ask",
        ),
        (
            "rows",
            Fault("", 429),
            "the Hub answered 429 (Too Many Requests) when",
            "wait a few minutes",
        ),
        (
            "rows",
            Fault("", 500),
            "the Hub answered 500 (Internal Server Error) when",
            "try again later",
        ),
        ("rows", Fault("", -1), "the Hub cannot be reached (", "hf://OWNER/NAME"),
        (
            "rows",
            Fault(ROWS, 500),
            "the Hub answered 500 (Internal Server Error) when",
            "try again later",
        ),
        ("rows", Fault(ROWS, n_bytes=10), "the Hub cannot be reached (", "hf://OWNER/NAME"),
    ],
)
def test_each_failure_is_one_line_with_its_reason(rows, source, fault, message, hint):
    rows.faults += [fault] if fault else []
    with pytest.raises(DataError) as caught:
        list(Table(f"hf://someone/{source}", Job.TEXTS).texts())
    assert message.replace("the Hub", "the Hugging Face Hub") in caught.value.message
    assert "\n" not in caught.value.message
    assert hint in caught.value.hint


def test_offline_rows_are_not_asked_for(rows, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(
        DataError, match="someone/rows is not in the local cache, and HF_HUB_OFFLINE forbids"
    ):
        list(Table("hf://someone/rows", Job.TEXTS).texts())
    assert rows.asked == []
