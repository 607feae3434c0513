"""The shipped published tables: complete, consistent with themselves and with each other."""

from statistics import fmean

import pytest
import yaml

from simcse_cli.comparison.published import PublishedTable, TableRow, load_table, origins, sources, table_ids
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.evaluation.sts import STS_SETTINGS
from simcse_cli.results.columns import AVERAGE, TRANSFER_AVERAGE
from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS, StsProtocol

TABLES = {name: load_table(name) for name in table_ids()}


def rows_with_average() -> list[tuple[PublishedTable, TableRow]]:
    return [
        (table, row)
        for table in TABLES.values()
        for row in table.rows
        if "Avg." in table.columns and len(table.columns) == 8
    ]


def near(stated: float, exact: float, *, decimals: int) -> bool:
    """Say whether ``stated`` is ``exact`` rounded to ``decimals``, ties either way."""
    return abs(stated - exact) <= 0.5 * 10**-decimals + 1e-9


def test_tables_cover_the_four_documents_and_the_repository() -> None:
    assert len(TABLES) == 35
    assert {name.split(".")[0] for name in TABLES} == {"simcse", "v1", "repro", "nc", "repo"}
    assert {table.source.short for table in TABLES.values()} == {
        source.short for source in sources().values()
    }


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_table_is_whole(table: PublishedTable) -> None:
    assert table.title
    assert table.label
    assert table.source in sources().values()
    assert len({(row.name, row.group) for row in table.rows}) == len(table.rows)
    assert len(set(table.columns)) == len(table.columns)
    assert table.systems == "columns" or len(table.measures) in (0, len(table.columns))
    for row in table.rows:
        assert len(row.values) == len(table.columns)
        assert row.origin is None or row.origin in origins()


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_system_is_found_by_its_label(table: PublishedTable) -> None:
    systems = table.all_systems()
    for system in systems:
        assert table.system(system.label) == system


@pytest.mark.parametrize(
    ("table", "row"),
    rows_with_average(),
    ids=lambda value: getattr(value, "id", getattr(value, "name", None)),
)
def test_stated_average_is_the_mean_of_its_row_or_a_listed_exception(
    table: PublishedTable, row: TableRow
) -> None:
    *scores, stated = row.values
    mean = fmean(value for value in scores if value is not None)
    exception = next(
        (item for item in table.average_exceptions if (item.row, item.group) == (row.name, row.group)), None
    )
    assert stated is not None
    if exception is None:
        assert near(stated, mean, decimals=2)
    else:
        assert not near(stated, mean, decimals=2)
        assert exception.mean is not None
        assert near(exception.mean, mean, decimals=2)


def test_average_rows_are_many() -> None:
    assert len(rows_with_average()) == 122


def test_corrections_are_the_five_known_and_each_is_applied() -> None:
    found = {
        (table.id, item.row, item.column): (item.extracted, item.published)
        for table in TABLES.values()
        for item in table.corrections
    }
    assert found == {
        ("simcse.5", "CT-BERT-base", "STS-B"): (77.21, 74.31),
        ("simcse.5", "DeCLUTR-RoBERTa-base", "STS13"): (73.19, 75.19),
        ("simcse.5", "DeCLUTR-RoBERTa-base", "STS14"): (65.32, 65.52),
        ("simcse.B.3", "SBERT-base + flow (target)", "STS-B"): (81.13, 81.03),
        ("simcse.E.1", "SimCSE-RoBERTa-base w/ MLM", "MR"): (83.27, 83.37),
    }
    for table in TABLES.values():
        for item in table.corrections:
            row = next(row for row in table.rows if (row.name, row.group) == (item.row, item.group))
            assert row.values[table.columns.index(item.column)] == item.published


def test_mteb_averages_are_the_means_of_the_per_dataset_table() -> None:
    summary, details = TABLES["nc.6"], TABLES["nc.4"]
    for system in details.all_systems():
        row = next(row for row in summary.rows if row.name == f"{system.name}, RoBERTa-base")
        column = details.columns.index(system.name)
        for category in ("Class.", "Clust.", "PairClass.", "Rerank.", "Retr.", "STS", "Summ."):
            values = [one.values[column] for one in details.rows if one.group == category]
            stated = row.values[summary.columns.index(category)]
            # the document rounds from more digits than the one decimal that it prints
            assert stated == pytest.approx(fmean(v for v in values if v is not None), abs=0.11)
        stated_average = row.values[summary.columns.index("Avg.")]
        assert near(float(stated_average or 0), 100 * fmean(system.scores.values()), decimals=1)


@pytest.mark.parametrize(("repeated", "original"), [("repro.4", "simcse.1"), ("repro.5", "simcse.3")])
def test_report_differences_are_report_minus_paper(repeated: str, original: str) -> None:
    expected = {row.name: row.values[0] for row in TABLES[original].rows}
    for row in TABLES[repeated].rows:
        ours, difference, _ = row.values
        if row.name == "Word deletion 10%":
            assert difference == 2.88  # as printed; the note of the table gives 2.28
        else:
            assert difference == pytest.approx(float(ours or 0) - float(expected[row.name] or 0), abs=1e-9)


def test_report_differences_of_sts_tasks_are_report_minus_paper() -> None:
    paper, report = TABLES["simcse.5"], TABLES["repro.6"]
    for row in TABLES["repro.7"].rows:
        ours = report.system(row.name).scores
        published = paper.system(row.name, group="unsupervised").scores
        for measure, stated in zip(paper.measures, row.values, strict=True):
            assert measure is not None
            assert stated == pytest.approx(100 * (ours[measure] - published[measure]), abs=0.0101)


def test_system_scores_are_fractions_and_plain_numbers_stay() -> None:
    assert TABLES["simcse.5"].system("CT-BERT-base").scores["STSBenchmark"] == 0.7431
    assert TABLES["nc.6"].system("SimCSE, BERT-base").scores["uniformity"] == -2.62
    assert TABLES["simcse.A.1"].all_systems() == []


def test_measures_are_those_that_results_have() -> None:
    averages = (AVERAGE, TRANSFER_AVERAGE)
    known = {name + split for name in (*STS_TASKS, *TRANSFER_TASKS, *averages) for split in ("", "-dev")}
    for table in TABLES.values():
        for system in table.all_systems():
            plain = {name for name in system.scores if not name.startswith("mteb-")}
            assert plain <= known | {"alignment", "uniformity"}


def test_system_of_a_transposed_table_is_a_column() -> None:
    system = TABLES["nc.4"].system("simcse")
    assert len(system.scores) == 56
    assert system.scores["mteb-STS12"] == 0.702


def test_blank_cell_is_no_score() -> None:
    names = [system.name for system in TABLES["v1.4"].all_systems()]
    assert "p=0.05" not in names
    assert len(names) == 7


def test_system_name_ignores_case_and_punctuation() -> None:
    assert TABLES["simcse.B.3"].system("sup SimCSE BERT base").name == "Sup. SimCSE-BERT-base"


def test_ambiguous_row_names_its_groups() -> None:
    with pytest.raises(ConfigError, match="unsupervised, supervised") as caught:
        TABLES["simcse.5"].system("SimCSE-BERT-base")
    assert caught.value.hint == "choose with --group unsupervised"
    assert TABLES["simcse.5"].system("SimCSE-BERT-base", group="supervised").scores[AVERAGE] == 0.8157


def test_misspelt_row_and_table_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"SimCSE-BERT-base \(supervised\)"):
        TABLES["simcse.5"].system("SimCES-BERT-base")
    with pytest.raises(ConfigError, match=r"nearest: simcse\.5"):
        load_table("simsce.5")


def test_own_table_is_read_from_a_file(tmp_path) -> None:
    path = tmp_path / "ours.yaml"
    content = {
        "id": "ours",
        "source": "internal note 7",
        "label": "PublishedTable 1",
        "title": "Our models",
        "columns": ["STS-B"],
        "measures": ["STSBenchmark"],
        "rows": [{"name": "small", "values": [80.5]}],
    }
    path.write_text(yaml.safe_dump(content))
    table = load_table(str(path))
    assert table.source.short == "internal note 7"
    assert table.system("small").scores == {"STSBenchmark": 0.805}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [{"name": "small", "values": [1.0, 2.0]}]}, "row 'small' has 2 values, need 1"),
        ({"rows": [{"name": "small"}]}, "values"),
        ({"colour": "blue"}, "colour"),
        ({"columns": None}, "columns"),
    ],
)
def test_malformed_own_table_is_named(tmp_path, change: dict[str, object], message: str) -> None:
    content = {"id": "x", "source": "x", "label": "x", "title": "x", "columns": ["a"], "rows": []} | change
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    with pytest.raises(DataError, match=message):
        load_table(str(path))


def test_table_of_protocols_is_what_eval_does() -> None:
    for row in TABLES["simcse.B.1"].rows:
        ours = STS_SETTINGS[StsProtocol(row.settings["protocol"])]
        metrics = " and ".join(metric.value.capitalize() for metric in ours.metrics)
        stated = (ours.paper, "yes" if ours.regressor else "no", metrics, ours.aggregation.value)
        assert stated == (row.name, *(row.settings[key] for key in ("regressor", "metric", "aggregation")))
    assert len(TABLES["simcse.B.1"].rows) == len(StsProtocol)
