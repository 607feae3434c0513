"""What runs are called where several stand side by side, and what chose their models."""

import pytest

from simcse_cli.results.columns import MLM_MEASURE
from simcse_cli.results.runs import RunRecord, short_names


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["runs/repeat/seed-1", "runs/base/seed-1"], ["repeat/seed-1", "base/seed-1"]),
        (["/a/run", "/b/a/run"], ["/a/run", "b/a/run"]),
        (["/a/run", "/a/other"], ["run", "other"]),
        (["run", "run"], ["run", "run"]),
    ],
)
def test_short_names(sources, names):
    assert short_names(sources) == names


def test_held_out_texts_chose_a_masked_lm_whatever_their_share():
    def chosen_by(**data):
        facts = {"dev_suite": MLM_MEASURE, **data}
        return RunRecord("finished", "mlm", "m", 1, {}, facts, total_steps=1).chosen_by

    assert chosen_by(dev_split=0.01) == "inverse perplexity on 1% held-out texts"
    assert chosen_by() == "inverse perplexity on held-out texts"
