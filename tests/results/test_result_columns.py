import pytest

from simcse_cli.errors import ConfigError
from simcse_cli.results.columns import find_measure, find_tasks, label
from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS


@pytest.mark.parametrize("text", ["SST2", "SST-2", "sst", "sst 2"])
def test_sst2_goes_by_the_names_of_the_benchmark_and_of_the_papers(text):
    assert find_tasks(text, TRANSFER_TASKS) == ("SST2",)
    assert find_measure(f"{text}-dev", ["MR", "SST2-dev"]) == "SST2-dev"


def test_a_hint_names_each_measure_once():
    with pytest.raises(ConfigError) as caught:
        find_measure("xyz", ["STSBenchmark", "average"])
    assert caught.value.hint == "there are STSBenchmark, average"


@pytest.mark.parametrize(
    ("measure", "heading"),
    [
        ("SST2", "SST-2"),
        ("STSBenchmark-dev", "STS-B dev"),
        ("STS12", "STS12"),
        ("mteb-STS17", "STS17"),
    ],
)
def test_headings_are_those_of_the_tables(measure, heading):
    assert label(measure) == heading


def test_tasks_are_named_once_in_the_order_given():
    assert find_tasks("sick-r, STS12,SICKRelatedness", STS_TASKS) == ("SICKRelatedness", "STS12")


@pytest.mark.parametrize(
    ("text", "message"), [("SST3", "did you mean SST2"), (" , ", "no task"), ("???", "known: MR")]
)
def test_unknown_tasks_are_refused_with_help(text, message):
    with pytest.raises(ValueError, match=message):
        find_tasks(text, TRANSFER_TASKS)
