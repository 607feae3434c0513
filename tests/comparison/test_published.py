"""The shipped published tables: complete, consistent with themselves and with each other."""

from pathlib import Path
from statistics import fmean

import pytest
import yaml

from simcse_cli.comparison.published import (
    PublishedSystem,
    PublishedTable,
    TableRow,
    load_table,
    origins,
    published_tables,
    sources,
    table_ids,
)
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
        if any(value is not None for value in row.values[:-1])
    ]


def near(stated: float, exact: float, *, decimals: int) -> bool:
    """Say whether ``stated`` is ``exact`` rounded to ``decimals``, ties either way."""
    return abs(stated - exact) <= 0.5 * 10**-decimals + 1e-9


SUCCESSORS = [
    *("angle", "arccse", "cards", "consert", "dclr", "debcse", "diffcse", "esimcse", "infocse"),
    *("mirror-bert", "mixcse", "pcl", "promptbert", "rankcse", "rankencoder", "scd"),
    *("simcse-plus-plus", "sncse", "whitenedcse"),
]


def test_tables_cover_the_documents_the_repository_and_the_successors() -> None:
    assert len(TABLES) == 54
    documents = {"simcse", "v1", "repro", "nc", "repo"}
    assert {name.split(".")[0] for name in TABLES} == documents | set(SUCCESSORS)
    assert {table.source.short for table in TABLES.values()} == {
        source.short for source in sources().values()
    }


def test_tables_are_in_the_order_of_their_documents() -> None:
    names = list(TABLES)
    assert names[-len(SUCCESSORS) :] == SUCCESSORS
    assert names[:11] == [
        *(f"simcse.{i}" for i in range(1, 9)),
        "simcse.A.1",
        "simcse.B.1",
        "simcse.B.2",
    ]
    assert [name for name in names if name.startswith("v1.")][:5] == [
        "v1.2",
        "v1.4",
        "v1.8",
        "v1.9",
        "v1.10",
    ]
    found = published_tables(None)
    (table,) = found.reports
    assert [column.heading for column in table.columns] == [
        "table",
        "source",
        "in the source",
        "what",
        "rows",
        "comparable",
    ]
    cells = ["simcse.5", "SimCSE paper", "Table 5", TABLES["simcse.5"].title, "23", "23"]
    assert (table.cells()[4], found.payload) == (cells, {"tables": table.rows})


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
        (
            item
            for item in table.average_exceptions
            if (item.row, item.group) == (row.name, row.group)
        ),
        None,
    )
    assert stated is not None
    if exception is None:
        assert near(stated, mean, decimals=2)
    else:
        assert not near(stated, mean, decimals=2)
        assert exception.mean is not None
        assert near(exception.mean, mean, decimals=2)


def test_average_rows_are_many() -> None:
    assert len(rows_with_average()) == 178


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


@pytest.mark.parametrize(
    ("repeated", "original"), [("repro.4", "simcse.1"), ("repro.5", "simcse.3")]
)
def test_report_differences_are_report_minus_paper(repeated: str, original: str) -> None:
    expected = {row.name: row.values[0] for row in TABLES[original].rows}
    for row in TABLES[repeated].rows:
        ours, difference, _ = row.values
        if row.name == "Word deletion 10%":
            assert difference == 2.88  # as printed; the note of the table gives 2.28
        else:
            assert difference == pytest.approx(
                float(ours or 0) - float(expected[row.name] or 0), abs=1e-9
            )


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
    known = {
        name + split for name in (*STS_TASKS, *TRANSFER_TASKS, *averages) for split in ("", "-dev")
    }
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
    assert (
        TABLES["simcse.5"].system("SimCSE-BERT-base", group="supervised").scores[AVERAGE] == 0.8157
    )


def test_misspelt_row_and_table_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"SimCSE-BERT-base \(supervised\)"):
        TABLES["simcse.5"].system("SimCES-BERT-base")
    with pytest.raises(ConfigError) as caught:
        load_table("simsce.5")
    start, *others = caught.value.message.split(", ")
    assert (start, len(others)) == ("no published table 'simsce.5'; nearest: simcse.5", 2)
    assert load_table("SIMCSE.5") == TABLES["simcse.5"]
    with pytest.raises(ConfigError) as caught:
        load_table("?")
    assert caught.value.message == "no published table '?'"


OWN = {
    "id": "own",
    "source": "internal note 7",
    "label": "Table 1",
    "title": "Our models",
    "columns": ["STS-B", "align."],
    "measures": ["STSBenchmark", "alignment"],
    "settings": {"metric": "spearman", "pooler": "avg"},
    "rows": [
        {
            "name": "small",
            "values": [80.5, 0.25],
            "group": "a",
            "origin": "authors",
            "settings": {"pooler": "cls"},
        },
        {"name": "big", "values": [None, 0.5], "origin": "elsewhere"},
        {"name": "blank", "values": [None, None], "group": "b"},
    ],
    "corrections": [{"row": "small", "column": "STS-B", "extracted": 81.5, "published": 80.5}],
    "average_exceptions": [
        {"row": "*", "reason": "rounded"},
        {"row": "big", "reason": "as printed", "mean": 0.4},
    ],
    "notes": ["measured twice"],
}


def own_table(folder: Path, **change: object) -> str:
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(OWN | change))
    load_table.cache_clear()
    return str(path)


def test_own_table_is_read_from_a_file(tmp_path: Path) -> None:
    table = load_table(own_table(tmp_path))
    assert table.source.short == table.source.citation == "internal note 7"
    asked = {"metric": "spearman", "pooler": "avg"}
    small = {"STSBenchmark": 0.805, "alignment": 0.25}
    assert table.all_systems() == [
        PublishedSystem("own", "small", "a", small, asked | {"pooler": "cls"}),
        PublishedSystem("own", "big", None, {"alignment": 0.5}, asked),
    ]
    assert [table.system(name).label for name in ("SMALL", "small (a)", "big")] == [
        "small (a)",
        "small (a)",
        "big",
    ]
    assert table.system("small", group="A").name == "small"


def test_own_table_is_shown_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    found = published_tables(own_table(tmp_path))
    (report,) = found.reports
    assert report.title == "own: Our models (internal note 7, Table 1)"
    headings = ["row", "group", "STS-B", "align.", "pooler", "origin"]
    assert [column.heading for column in report.columns] == headings
    assert report.cells() == [
        ["small", "a", "80.50", "0.25", "cls", "authors"],
        ["big", "–", "–", "0.50", "–", "elsewhere"],
        ["blank", "b", "–", "–", "–", "–"],
    ]
    assert report.notes == [
        "source: internal note 7",
        "settings: metric spearman, pooler avg",
        f"authors: {origins()['authors']}",
        "corrected: small, STS-B: 80.5 (misread as 81.5)",
        "average: all rows: rounded",
        "average: big: as printed",
        "measured twice",
    ]
    rows = [
        {"group": None, "origin": None, "settings": {}}
        | {key: value for key, value in row.items() if key != "values"}
        for row in OWN["rows"]
    ]
    for row, (stsb, align) in zip(rows, ((0.805, 0.25), (None, 0.5), (None, None)), strict=True):
        row["values"] = {"STS-B": stsb, "align.": align}
    exceptions = [{"group": None, "mean": None} | each for each in OWN["average_exceptions"]]
    corrections = [each | {"group": None} for each in OWN["corrections"]]
    assert found.payload == {
        **{key: OWN[key] for key in ("source", "label", "title", "settings", "columns", "notes")},
        **{"table": "own", "unit": "fraction", "rows": rows},
        **{"corrections": corrections, "average_exceptions": exceptions},
    }
    plain = published_tables(
        own_table(tmp_path, unit="plain", rows=[{"name": "big", "values": [80.5, 0.5]}])
    )
    assert plain.payload["unit"] == "plain"
    (report,) = plain.reports
    assert [column.heading for column in report.columns] == ["row", "STS-B", "align."]
    assert report.cells() == [["big", "80.5", "0.5"]]


@pytest.mark.parametrize(
    ("systems", "change", "scores", "cells"),
    [
        (
            "columns",
            {"measures": []},
            {"STS-B": {"mteb-small": 0.8, "mteb-big": 0.7}, "align.": {"mteb-small": 0.25}},
            [["small", "80.00", "25.00"], ["big", "70.00", "–"]],
        ),
        (
            "cells",
            {},
            {
                "small, STS-B": {"STSBenchmark": 0.8},
                "small, align.": {"alignment": 25.0},
                "big, STS-B": {"STSBenchmark": 0.7},
            },
            [["small", "80.00", "25"], ["big", "70.00", "–"]],
        ),
        (
            "rows",
            {"measures": []},
            {},
            [["small", "80.00", "25.00"], ["big", "70.00", "–"]],
        ),
    ],
)
def test_systems_are_rows_columns_or_cells(tmp_path: Path, systems, change, scores, cells) -> None:
    rows = [{"name": "small", "values": [80.0, 25.0]}, {"name": "big", "values": [70.0, None]}]
    path = own_table(tmp_path, systems=systems, rows=rows, **change)
    assert {system.name: system.scores for system in load_table(path).all_systems()} == scores
    assert published_tables(path).reports[0].cells() == cells


def test_a_row_may_have_measures_of_its_own(tmp_path: Path) -> None:
    row = {"name": "small", "values": [80.0, 70.0], "measures": ["STS12", None]}
    path = own_table(tmp_path, rows=[row, {"name": "big", "values": [80.0, 0.5]}])
    assert [system.scores for system in load_table(path).all_systems()] == [
        {"STS12": 0.8},
        {"STSBenchmark": 0.8, "alignment": 0.5},
    ]
    values = [found["values"] for found in published_tables(path).payload["rows"]]
    assert values == [{"STS-B": 0.8, "align.": 0.7}, {"STS-B": 0.8, "align.": 0.5}]


@pytest.mark.parametrize(
    ("names", "name", "n_named"),
    [
        ([f"model {i}" for i in range(6)], "model", 5),
        ([f"{i}abcde" for i in range(4)], "abcdf", 3),
        (["abc"], "xyz", 0),
    ],
)
def test_an_unknown_row_names_five_that_hold_it_or_three_that_are_near(
    tmp_path, names, name, n_named
) -> None:
    rows = [{"name": each, "values": [1.0, None]} for each in names]
    with pytest.raises(ConfigError) as caught:
        load_table(own_table(tmp_path, rows=rows)).system(name)
    start, _, nearest = caught.value.message.partition("; nearest: ")
    found = nearest.split(", ") if nearest else []
    assert (start, len(found)) == (f"own has no row {name!r}", n_named)
    assert set(found) <= set(map(repr, names))


def test_a_row_that_occurs_twice_is_named_with_its_groups(tmp_path: Path) -> None:
    rows = [
        {"name": name, "group": group, "values": [1.0, None]}
        for name, group in (("Big", "a"), ("big", "b"))
    ]
    table = load_table(own_table(tmp_path, rows=rows))
    with pytest.raises(ConfigError) as caught:
        table.system("big")
    assert caught.value.message == "own has 2 rows named 'Big' (groups a, b), need one"
    with pytest.raises(ConfigError) as caught:
        table.system("big", group="c")
    assert caught.value.message == "own, group 'c', has no row 'big'"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [{"name": "small", "values": [1.0, 2.0]}]}, "row 'small' has 2 values, need 1"),
        ({"rows": [{"name": "small"}]}, "values"),
        ({"colour": "blue"}, "colour"),
        ({"columns": None, "id": None}, "own.yaml: no id, columns\n"),
        (
            {"rows": [{"name": "small", "values": [1.0], "measures": ["a", "b"]}]},
            "row 'small' has 2 measures, need 1",
        ),
        ({"measures": ["a", "b"]}, "the table has 2 measures, need 1"),
    ],
)
def test_malformed_own_table_is_named(tmp_path, change: dict[str, object], message: str) -> None:
    content = {
        "id": "x",
        "source": "x",
        "label": "x",
        "title": "x",
        "columns": ["a"],
        "rows": [],
    } | change
    path = tmp_path / "own.yaml"
    path.write_text(
        yaml.safe_dump({key: value for key, value in content.items() if value is not None})
    )
    with pytest.raises(DataError, match=message):
        load_table(str(path))


def test_own_table_that_is_a_list_is_named(tmp_path: Path) -> None:
    (tmp_path / "list.yml").write_text("- 1\n")
    with pytest.raises(DataError, match=r"list\.yml: no id, source, label, title, columns, rows\n"):
        load_table(str(tmp_path / "list.yml"))


def test_table_of_protocols_is_what_eval_does() -> None:
    for row in TABLES["simcse.B.1"].rows:
        ours = STS_SETTINGS[StsProtocol(row.settings["protocol"])]
        metrics = " and ".join(metric.value.capitalize() for metric in ours.metrics)
        stated = (ours.paper, "yes" if ours.regressor else "no", metrics, ours.aggregation.value)
        assert stated == (
            row.name,
            *(row.settings[key] for key in ("regressor", "metric", "aggregation")),
        )
    assert len(TABLES["simcse.B.1"].rows) == len(StsProtocol)
