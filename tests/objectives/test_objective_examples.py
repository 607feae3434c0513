"""The seam between data and objectives: what examples say of themselves, and the call after a step."""

from dataclasses import replace

import numpy as np
import pytest

from objectives.cases import PAIRS, build
from objectives.resume_cases import config_of, write_train_files
from simcse_cli.errors import ConfigError
from simcse_cli.objectives.simcse_unsup import SimcseUnsup
from simcse_cli.progress import SilentProgress
from simcse_cli.training.run import train_run
from simcse_cli.training.setup import read_data, with_model_defaults


def test_examples_that_are_rows_keep_the_files_of_a_copy(tiny_model_dir):
    objective, _ = build("simcse-unsup", tiny_model_dir)
    files = ((20, 2.0), (len(PAIRS.rows) - 20, 1.0))
    data = replace(PAIRS, rows=list(PAIRS.rows), files=files)
    found = objective.examples(data, np.random.default_rng(0))
    assert (found.items, found.files, found.are_rows) == (data.rows, files, True)


def test_examples_made_from_documents_have_no_files(tiny_model_dir):
    objective, data = build("next-sentence", tiny_model_dir)
    found = objective.examples(data, np.random.default_rng(0))
    assert (found.files, found.are_rows) == ((), False)


def test_a_file_of_documents_has_no_weight(tmp_path, tiny_model_dir):
    config = config_of("next-sentence", write_train_files(tmp_path), tiny_model_dir)
    weighted = replace(config, train_file=[f"{config.train_file[0]}:2"])
    with pytest.raises(ConfigError, match="a file has no weight of its own"):
        read_data(weighted, SilentProgress())


def test_contrastive_tension_counts_the_texts_that_are_cut(tmp_path, tiny_model_dir):
    config = config_of("ct", write_train_files(tmp_path), tiny_model_dir)
    config = with_model_defaults(replace(config, max_steps=1, max_length=3), SilentProgress())
    record = train_run(config, tmp_path / "run", SilentProgress())
    assert record.data["n_looked_at"] == record.data["n_examples"] == 24 * 8
    assert record.data["n_cut"] == 24 * 8


def test_after_step_is_called_once_for_each_step(tmp_path, tiny_model_dir, monkeypatch):
    calls = []
    monkeypatch.setattr(SimcseUnsup, "after_step", lambda self: calls.append(self))
    config = config_of("simcse-unsup", write_train_files(tmp_path), tiny_model_dir)
    config = with_model_defaults(replace(config, max_steps=3), SilentProgress())
    train_run(config, tmp_path / "run", SilentProgress())
    assert len(calls) == 3
