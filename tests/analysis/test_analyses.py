"""The page of an analysis of spaces has all analyses of them, and the paths of models that are runs."""

from dataclasses import replace

import pytest

from analysis.cases import encoder, space
from comparison.cases import write_run
from simcse_cli.analysis import analyses
from simcse_cli.analysis.analyses import SPACE_ANALYSES, analyze_spaces, space_analysis
from simcse_cli.analysis.options import SpaceOptions, SpectrumOptions
from simcse_cli.progress import SILENT


@pytest.mark.parametrize("name", SPACE_ANALYSES)
def test_a_page_has_every_analysis_once_and_means_over_seeds(name, monkeypatch, tmp_path):
    run = write_run(tmp_path / "seed-1")
    made = [space([[1, 0], [0, 1]], [[1, 0], [1, 1]], [5, 0]) for _ in range(2)]
    for seed, each in enumerate(made, 1):
        each.encoder = replace(encoder(f"all/seed-{seed}", group="all"), source=str(run))
    monkeypatch.setattr(
        analyses, "encode_pairs", lambda options, labels, progress: made[: len(labels)]
    )
    found = analyze_spaces(name, SpaceOptions(), ["one", "two"], SILENT)
    titles = [space_analysis(kind, made).title for kind in SPACE_ANALYSES]
    assert len(set(titles)) == len(titles)
    assert found.title == titles[list(SPACE_ANALYSES).index(name)]
    assert "all (mean of 2)" in {row[0] for row in found.tables[0].cells()}
    assert found.page.title == "Embedding spaces on some"
    page = found.page.analyses()
    assert [part.title for part in page] == [*titles, "Paths of training runs"]
    assert page[list(SPACE_ANALYSES).index(name)].payload is found.payload
    alone = analyze_spaces(name, SpaceOptions(), ["one"], SILENT)
    assert alone.page.title == "Embedding spaces on some"


def test_options_of_one_analysis_leave_the_others_of_its_page_as_they_are(monkeypatch):
    made = [space([[4, 0], [0, 1]], [[2, 0], [0, 1]], [5, 0])]
    monkeypatch.setattr(analyses, "encode_pairs", lambda options, labels, progress: made)
    found = analyze_spaces("spectrum", SpectrumOptions(raw=True, center=True), None, SILENT)
    assert found.tables[0].title.endswith("raw rows, centred")
    plain = {kind: space_analysis(kind, made).payload for kind in SPACE_ANALYSES}
    page = dict(zip(SPACE_ANALYSES, found.page.analyses(), strict=False))
    assert page["geometry"].payload == plain["geometry"]
    assert page["spectrum"].payload == found.payload != plain["spectrum"]
