from pathlib import Path

import datasets
import huggingface_hub
import pytest

from simcse_cli.data import mteb_files
from simcse_cli.data.mteb_files import (
    cache_of,
    dataset_digest,
    find_dataset_folder,
    folder_digest,
    hub_session,
    senteval_dataset,
)


@pytest.mark.parametrize("folder", ["STSBenchmark", "mteb/stsbenchmark-sts", "stsbenchmark-sts"])
def test_dataset_folder_is_found_under_each_of_its_names(folder, tmp_path):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "test.jsonl").write_text("{}")
    assert (
        find_dataset_folder(tmp_path, "STSBenchmark", "mteb/stsbenchmark-sts") == tmp_path / folder
    )


def test_an_empty_folder_is_no_dataset(tmp_path):
    (tmp_path / "STSBenchmark").mkdir()
    assert find_dataset_folder(tmp_path, "STSBenchmark", "mteb/stsbenchmark-sts") is None


def test_folder_digest_follows_names_and_contents(tmp_path):
    (tmp_path / "a").write_text("1")
    first = folder_digest(tmp_path)
    assert folder_digest(tmp_path) == first
    (tmp_path / "a").write_text("2")
    second = folder_digest(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({first, second, folder_digest(tmp_path)}) == 3


def test_senteval_files_become_the_splits_of_mteb(sts_folder):
    stsb = senteval_dataset(sts_folder, "STSBenchmark")
    assert stsb is not None
    assert {name: len(rows) for name, rows in stsb.items()} == {
        "train": 8,
        "validation": 8,
        "test": 8,
    }
    sick = senteval_dataset(sts_folder, "SICK-R")
    assert sick is not None
    assert {name: len(rows) for name, rows in sick.items()} == {"test": 18}
    year = senteval_dataset(sts_folder, "STS12")
    assert year is not None
    assert {name: len(rows) for name, rows in year.items()} == {"test": 30}


@pytest.mark.parametrize("task", ["BIOSSES", "STS17"])
def test_senteval_files_do_not_serve_other_tasks(task, sts_folder):
    assert senteval_dataset(sts_folder, task) is None


def test_no_senteval_folder_serves_nothing(tmp_path):
    assert senteval_dataset(tmp_path, "STS12") is None


def test_dataset_digest_follows_the_rows(sts_folder):
    before = senteval_dataset(sts_folder, "STS12")
    path = sts_folder / "downstream/STS/STS12-en-test/STS.gs.MSRpar.txt"
    path.write_text(path.read_text().replace(path.read_text().splitlines()[0], "4.9", 1))
    after = senteval_dataset(sts_folder, "STS12")
    assert before is not None
    assert after is not None
    assert dataset_digest(before) != dataset_digest(after)


def test_unreachable_hub_means_offline_for_the_session_only(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(mteb_files, "is_reachable", lambda endpoint: False)
    with hub_session():
        assert huggingface_hub.constants.HF_HUB_OFFLINE
        assert datasets.config.HF_HUB_OFFLINE
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
    assert not datasets.config.HF_HUB_OFFLINE


def test_behind_a_proxy_the_hub_counts_as_reachable(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    assert mteb_files.is_reachable("https://hub.invalid")


def test_hub_that_refuses_connections_is_not_reachable(monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert not mteb_files.is_reachable("http://127.0.0.1:1")


def test_local_data_are_cached_under_their_digest():
    before = datasets.config.HF_DATASETS_CACHE
    with cache_of("local-abc"):
        assert Path(before) / "local-abc" == datasets.config.HF_DATASETS_CACHE
    assert before == datasets.config.HF_DATASETS_CACHE
