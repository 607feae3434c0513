"""STS settings of the literature by name, so that a score says how it was taken.

Source: Gao et al. 2021, Table B.1. Two papers that report the same encoder can differ by ten points because
one averages the subsets of a year and the other concatenates them.
"""

from dataclasses import dataclass, replace

from simcse_cli.choices import Aggregation, Metric, StsProtocol


@dataclass(frozen=True)
class StsSetting:
    """How a paper scores STS.

    ``metrics`` are the correlations the paper reports, the one taken as the score first; ``regressor`` says
    whether one is trained on STS-B and SICK-R; ``paper`` is the citation.
    """

    metrics: tuple[Metric, ...]
    aggregation: Aggregation
    regressor: bool
    paper: str

    @property
    def metric(self) -> Metric:
        """The correlation that is the score."""
        return self.metrics[0]


_SPEARMAN, _PEARSON = (Metric.SPEARMAN,), (Metric.PEARSON,)

STS_SETTINGS: dict[StsProtocol, StsSetting] = {
    StsProtocol.SIMCSE: StsSetting(_SPEARMAN, Aggregation.ALL, False, "Gao et al. 2021"),
    StsProtocol.HILL: StsSetting(_SPEARMAN + _PEARSON, Aggregation.ALL, False, "Hill et al. 2016"),
    StsProtocol.INFERSENT: StsSetting(_PEARSON, Aggregation.MEAN, True, "Conneau et al. 2017"),
    StsProtocol.SENTEVAL: StsSetting(_PEARSON, Aggregation.MEAN, True, "Conneau and Kiela 2018"),
    StsProtocol.SBERT: StsSetting(_SPEARMAN, Aggregation.ALL, False, "Reimers and Gurevych 2019"),
    StsProtocol.IS_BERT: StsSetting(_SPEARMAN, Aggregation.ALL, False, "Zhang et al. 2020"),
    StsProtocol.BERT_FLOW: StsSetting(_SPEARMAN, Aggregation.WMEAN, False, "Li et al. 2020"),
    StsProtocol.BERT_WHITENING: StsSetting(_SPEARMAN, Aggregation.WMEAN, False, "Su et al. 2021"),
    StsProtocol.WIETING: StsSetting(_PEARSON, Aggregation.MEAN, False, "Wieting et al. 2020"),
    StsProtocol.DECLUTR: StsSetting(_SPEARMAN, Aggregation.MEAN, False, "Giorgi et al. 2021"),
}


def resolve_setting(
    protocol: StsProtocol = StsProtocol.SIMCSE,
    *,
    metric: Metric | None = None,
    aggregation: Aggregation | None = None,
    regressor: bool | None = None,
) -> StsSetting:
    """Return the setting of a protocol with single choices overridden; None keeps the protocol's own."""
    setting = STS_SETTINGS[protocol]
    return replace(
        setting,
        metrics=setting.metrics if metric is None else (metric,),
        aggregation=setting.aggregation if aggregation is None else aggregation,
        regressor=setting.regressor if regressor is None else regressor,
    )
