import pytest

from simcse_cli.choices import Aggregation, Metric, StsProtocol
from simcse_cli.evaluation.protocols import STS_SETTINGS, resolve_setting


@pytest.mark.parametrize(
    ("name", "regressor", "metrics", "aggregation"),
    [
        ("hill", False, ["spearman", "pearson"], "all"),
        ("infersent", True, ["pearson"], "mean"),
        ("senteval", True, ["pearson"], "mean"),
        ("sbert", False, ["spearman"], "all"),
        ("is-bert", False, ["spearman"], "all"),
        ("bert-flow", False, ["spearman"], "wmean"),
        ("bert-whitening", False, ["spearman"], "wmean"),
        ("wieting", False, ["pearson"], "mean"),
        ("declutr", False, ["spearman"], "mean"),
        ("simcse", False, ["spearman"], "all"),
    ],
)
def test_setting_is_that_of_table_b1(name, regressor, metrics, aggregation):
    setting = STS_SETTINGS[StsProtocol(name)]
    assert setting.regressor is regressor
    assert [metric.value for metric in setting.metrics] == metrics
    assert setting.metric == metrics[0]
    assert setting.aggregation == aggregation


def test_every_protocol_name_has_a_setting_with_its_paper():
    assert set(STS_SETTINGS) == set(StsProtocol)
    assert all(setting.paper[-4:].isdigit() for setting in STS_SETTINGS.values())


def test_single_choices_override_the_protocol():
    setting = resolve_setting(StsProtocol.SENTEVAL, metric=Metric.SPEARMAN, regressor=False)
    assert (setting.metrics, setting.aggregation, setting.regressor) == (
        (Metric.SPEARMAN,),
        Aggregation.MEAN,
        False,
    )
    assert resolve_setting(StsProtocol.HILL) == STS_SETTINGS[StsProtocol.HILL]
    assert resolve_setting(aggregation=Aggregation.WMEAN).aggregation is Aggregation.WMEAN
