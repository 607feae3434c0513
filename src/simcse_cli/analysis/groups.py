"""`analyze groups`: groups of similar texts.

Each group is shown with its size, its words and its typical texts.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcse_cli.analysis.options import GroupOptions
from simcse_cli.analysis.presentation import Analysis
from simcse_cli.arrays import Floats, Integers
from simcse_cli.data.given import Given
from simcse_cli.data.ids import require_unique
from simcse_cli.data.jobs import Job
from simcse_cli.data.kinds import cell_text
from simcse_cli.data.show import SHOWN_LENGTH, shorten
from simcse_cli.data.table import Table
from simcse_cli.data.text import terms
from simcse_cli.encoding.units import Units, load_and_encode
from simcse_cli.errors import DataError, UsageError, require_extra
from simcse_cli.progress import Progress
from simcse_cli.results import plots
from simcse_cli.results.columns import columns
from simcse_cli.results.report import Column, Report
from simcse_cli.settings.choices import GroupMethod

MOST_AGGLOMERATED = 20_000
"""The most texts for agglomerative clustering, which holds the distances of all pairs."""
_DRAWS = 20  # random orders of the labels, for the score by chance
_LEAST_SIZE = 5  # texts in a group of HDBSCAN
_MOST_COLOURED = 7  # groups with a colour of their own
_NO_GROUP = -1


@dataclass(frozen=True)
class GroupedTexts:
    """Texts in groups; the largest group comes first.

    Attributes:
        rows: ``(n,)`` row of each text in its file, from 1.
        units: ``(n, D)`` vectors of length 1.
        groups: ``(n,)`` group of each text, from 0; -1 for a text in none.
        cosines: ``(n,)`` cosine of each text with the centre of its group (the mean vector); NaN
            for a text in no group.
        ids: id of each text, if a column of ids was named.
        labels: known class of each text, None without one, if a column of classes was named.
    """

    texts: list[str]
    rows: list[int]
    units: Units
    groups: Integers
    cosines: Floats
    ids: list[str] | None = None
    labels: list[str | None] | None = None

    @property
    def n_groups(self) -> int:
        return count_groups(self.groups)

    def members(self, group: int) -> Integers:
        """Return the positions of the texts of a group, nearest to its centre first."""
        positions = np.flatnonzero(self.groups == group)
        return positions[np.argsort(-self.cosines[positions], kind="stable")]

    def typical(self, group: int, count: int) -> list[str]:
        """Return at most ``count`` different texts of a group, nearest to its centre first."""
        texts = dict.fromkeys(self.texts[position] for position in self.members(group))
        return list(texts)[:count]


# ------------------------------------------------------------------ grouping
def assign(
    units: Units, method: GroupMethod, *, k: int | None, threshold: float | None, seed: int
) -> Integers:
    """Return the group ``(n,)`` of each unit vector; group 0 is the largest, -1 means none.

    ``kmeans`` makes ``k`` groups. ``agglomerative`` joins groups while the mean cosine between
    their texts is at least ``threshold``, or until there are ``k``. ``hdbscan`` takes dense regions
    (Campello et al. 2013) and leaves out what lies between them.
    """
    from sklearn import cluster  # imported here: it takes a second, and may not be installed

    clusters: Integers
    # With too few different vectors, k-means would only warn, and find fewer groups; the other
    # method would part equal texts.
    if k is not None and k > (n_different := len(np.unique(units, axis=0))):
        raise UsageError(f"{k} groups of {n_different:,} different vectors", option="--k")
    if method is GroupMethod.KMEANS:
        clusters = cluster.KMeans(k, n_init=10, random_state=seed).fit_predict(units)
    elif method is GroupMethod.HDBSCAN:
        clusters = cluster.HDBSCAN(min_cluster_size=_LEAST_SIZE, copy=True).fit_predict(units)
    else:
        # Groups at exactly this distance are not joined, and the vectors are rounded to float32.
        distance = None if threshold is None else 1 - threshold + float(np.finfo(np.float32).eps)
        joining = cluster.AgglomerativeClustering(
            n_clusters=k, distance_threshold=distance, metric="cosine", linkage="average"
        )
        clusters = joining.fit_predict(units)

    # Number the groups by size; of equally large ones, that with the earliest text comes first.
    numbers = clusters.tolist()
    sizes = Counter(number for number in numbers if number != _NO_GROUP)
    group_of = {number: group for group, (number, _) in enumerate(sizes.most_common())}
    return np.array([group_of.get(number, _NO_GROUP) for number in numbers], dtype=np.int64)


def count_groups(groups: Integers) -> int:
    return int(groups.max(initial=_NO_GROUP)) + 1


def cosines_to_centres(units: Units, groups: Integers) -> Floats:
    """Return the cosine of each vector with the mean of its group; without a group, NaN."""
    cosines = np.full(len(units), np.nan)
    for group in range(count_groups(groups)):
        members = groups == group
        centre = units[members].mean(axis=0, dtype=np.float64)
        # The floor avoids 0 / 0 if the vectors of a group add up to zero.
        cosines[members] = units[members] @ centre / max(np.linalg.norm(centre), 1e-12)
    return cosines


def telling_words(texts: Sequence[str], groups: Integers, count: int) -> list[list[str]]:
    """Return for each group words that are more frequent there than elsewhere, at most ``count``.

    The most telling word comes first: words are weighted by ``log_likelihood_ratio``, with numbers
    of texts as the counts. In scripts without spaces, two characters count as a word.
    """
    group_counts: list[Counter[str]] = [Counter() for _ in range(count_groups(groups))]
    total_counts: Counter[str] = Counter()
    for text, group in zip(texts, groups.tolist(), strict=True):
        distinct_words = set(terms(text))
        total_counts.update(distinct_words)
        if group != _NO_GROUP:
            group_counts[group].update(distinct_words)

    telling = []
    for group, counts in enumerate(group_counts):
        size = int((groups == group).sum())
        weights = {}
        for word, n_texts in counts.items():
            n_elsewhere = total_counts[word] - n_texts
            # Take a word if its share of the group, n_texts / size, is above that of all texts.
            if n_texts * len(texts) > size * total_counts[word]:
                weights[word] = log_likelihood_ratio(
                    (n_texts, size - n_texts),
                    (n_elsewhere, len(texts) - size - n_elsewhere),
                )
        # Words of equal weight are sorted by the alphabet, so that the order is always the same.
        ranked = sorted(weights, key=lambda word: (-weights[word], word))
        telling.append(ranked[:count])
    return telling


def log_likelihood_ratio(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Return how surely two groups differ in a share: G^2 of a table of two rows of counts.

    Source: Dunning 1993, "Accurate methods for the statistics of surprise and coincidence". With
    the count O of each cell, and E = row sum x column sum / total:

        G^2 = 2 sum O ln(O / E)

    It is 0 if both rows have the same shares; (2, 0) and (0, 2) give 8 ln 2.
    """
    column_sums = [first[0] + second[0], first[1] + second[1]]
    total = sum(column_sums)
    ratio = 0.0
    for row in (first, second):
        for count, column_sum in zip(row, column_sums, strict=True):
            if count:
                ratio += 2 * count * math.log(count * total / (sum(row) * column_sum))
    return ratio


def agreement(labels: Sequence[str], groups: Integers, seed: int) -> dict[str, float]:
    """Return how well groups agree with known labels.

    The texts that are in no group count together as one more group.

    ``v_measure`` is the harmonic mean of homogeneity and completeness (Rosenberg and Hirschberg
    2007), 0 to 1, and ``v_measure_by_chance`` is its mean over 20 random orders of the labels.
    ``ari`` is the adjusted Rand index (Hubert and Arabie 1985): 1 if the groups are those of the
    labels, 0 by chance.
    """
    from sklearn import metrics

    rng = np.random.default_rng(seed)
    known = np.array(labels)
    by_chance = []
    for _ in range(_DRAWS):
        by_chance.append(metrics.v_measure_score(rng.permutation(known), groups))
    return {
        "homogeneity": float(metrics.homogeneity_score(known, groups)),
        "completeness": float(metrics.completeness_score(known, groups)),
        "v_measure": float(metrics.v_measure_score(known, groups)),
        "v_measure_by_chance": float(np.mean(by_chance)),
        "ari": float(metrics.adjusted_rand_score(known, groups)),
    }


# ------------------------------------------------------------------ the command
def group_analysis(source: str, options: GroupOptions, progress: Progress) -> Analysis:
    """Read and encode the texts of a source, group them, and return the groups."""
    require_extra("sklearn", "`simcse analyze groups`")
    method = _method(options)
    grouped = _read_and_group(source, options, method, progress)
    return _analysis_of(source, grouped, options, method)


def _method(options: GroupOptions) -> GroupMethod:
    """Return the method of ``--by``; by default, kmeans with ``--k``, otherwise agglomerative."""
    has_k_or_threshold = options.k is not None or options.threshold is not None
    if options.by in (None, GroupMethod.AGGLOMERATIVE) and not has_k_or_threshold:
        raise UsageError(
            "how many groups?",
            option="--k",
            hint="name their number: --k 8\n"
            "        or the least cosine inside of one: --threshold 0.6\n"
            "        or let the density decide: --by hdbscan",
        )
    default = GroupMethod.AGGLOMERATIVE if options.k is None else GroupMethod.KMEANS
    method = options.by or default
    if method is GroupMethod.KMEANS and options.k is None:
        raise UsageError("kmeans needs the number of groups, --k N", option="--by")
    if method is GroupMethod.KMEANS and options.threshold is not None:
        raise UsageError("is for --by agglomerative", option="--threshold")
    if method is GroupMethod.HDBSCAN and has_k_or_threshold:
        option = "--k" if options.k is not None else "--threshold"
        raise UsageError("has no use with --by hdbscan, which finds the number", option=option)
    return method


def _check_count(n_texts: int, source: str, options: GroupOptions, method: GroupMethod) -> None:
    """Raise an error if there are too few or too many texts for the options."""
    least = _LEAST_SIZE if method is GroupMethod.HDBSCAN else 2
    if n_texts < least:
        raise DataError(f"{source}: {n_texts} texts, need at least {least}")
    if options.k is not None and options.k > n_texts:
        raise UsageError(f"{options.k} groups of {n_texts:,} texts", option="--k")
    if method is GroupMethod.AGGLOMERATIVE and n_texts > MOST_AGGLOMERATED:
        raise UsageError(
            f"agglomerative keeps the distance of every two texts, and {source} has "
            f"{n_texts:,}; it takes {MOST_AGGLOMERATED:,}",
            option="--by",
            hint="use --by kmeans --k N, or --by hdbscan",
        )


def _read_and_group(
    source: str, options: GroupOptions, method: GroupMethod, progress: Progress
) -> GroupedTexts:
    """Read, encode and group the texts; leave out rows without text, and report their number."""
    given = Given.of(options, progress=progress)
    given = given.of_texts(options.column, options.text, options.id_column, options.labels)
    extra_columns = [name for name in (options.id_column, options.labels) if name is not None]
    # A record is a text with its cells in the extra columns.
    table = Table(source, Job.TEXTS, given)
    records = list(table.texts_with(*extra_columns))
    with_text = [index for index, (text, _) in enumerate(records) if text.strip()]
    _check_count(len(with_text), source, options, method)
    if len(with_text) < len(records):
        progress.info(
            f"{source}: left out, since without text: {len(records) - len(with_text):,} rows"
        )

    # The ids come first in the cells of a row, the label last. Ids must be unique in rows without
    # text, too.
    ids = None
    if options.id_column is not None:
        ids_of_rows = [cell_text(row[0]) for _, row in records]
        require_unique(lambda: ids_of_rows, source, options.id_column)
        ids = [ids_of_rows[index] for index in with_text]
    labels: list[str | None] | None = None
    if options.labels is not None:
        labels = [table.text_of(records[index][1][-1]).strip() or None for index in with_text]

    texts = [records[index][0] for index in with_text]
    rows = [index + 1 for index in with_text]
    units, _ = load_and_encode(texts, options, progress)
    with progress.task(f"grouping by {method}", total=1) as task:
        groups = assign(units, method, k=options.k, threshold=options.threshold, seed=options.seed)
        task.advance()
    cosines = cosines_to_centres(units, groups)
    return GroupedTexts(texts, rows, units, groups, cosines, ids, labels)


def _analysis_of(
    source: str, grouped: GroupedTexts, options: GroupOptions, method: GroupMethod
) -> Analysis:
    """Return the groups as a table, a JSON object, a figure and a list of all texts."""
    # The table of the groups, with a note on the texts that are in no group.
    telling = telling_words(grouped.texts, grouped.groups, options.n_words)
    rows = _group_rows(grouped, telling, options.n_typical)
    table_rows = []
    for row in rows:
        shortened = [shorten(text, SHOWN_LENGTH) for text in row["typical"]]
        table_rows.append(
            row | {"words": ", ".join(row["words"]), "typical": " | ".join(shortened)}
        )
    notes = ["cosine: mean with the centre of the group; words: more frequent here than elsewhere"]
    n_ungrouped = int((grouped.groups == _NO_GROUP).sum())
    if n_ungrouped:
        notes.append(f"in no group: {n_ungrouped:,} of {len(grouped.texts):,} texts")
    table_columns = [*columns("group", "n_texts"), Column("cosine", kind="number")]
    table_columns += [Column("words"), Column("typical", "typical texts")]
    tables = [Report(f"Groups of {source}, by {method}", table_columns, table_rows, notes)]

    # The JSON object, with the agreement if the texts have labels.
    payload: dict[str, Any] = {
        "analysis": "groups",
        "source": source,
        "by": method.value,
        "k": options.k,
        "threshold": options.threshold,
        "n_texts": len(grouped.texts),
        "n_in_no_group": n_ungrouped,
        "groups": rows,
    }
    if grouped.labels is not None:
        labels = [label for label in grouped.labels if label is not None]
        is_labelled = np.array([label is not None for label in grouped.labels])
        payload["n_labelled"] = len(labels)
        payload["agreement"] = None
        counts = f"{len(labels):,} of {len(grouped.texts):,} texts have a label in {options.labels}"
        if len(labels) < 2:
            notes.append(f"no agreement, which needs 2 labels: {counts}")
        else:
            scores = agreement(labels, grouped.groups[is_labelled], options.seed)
            payload["agreement"] = scores
            report = _agreement_report(options.labels, len(set(labels)), grouped.n_groups, scores)
            if len(labels) < len(grouped.texts):
                report.notes.append(f"{counts}; the others are left out")
            tables.append(report)

    # The group of every text, which only JSON and CSV hold.
    text_rows = list(_text_rows(grouped))
    payload["texts"] = text_rows
    return Analysis(
        title="Groups",
        text=f"Texts of {source} whose vectors are close, grouped by {method}.",
        caption="The texts on the first two principal components of their vectors.",
        tables=tables,
        payload=payload,
        figure=lambda: group_figure(grouped, [", ".join(words[:2]) for words in telling]),
        series=[Report("Texts", [Column(key) for key in text_rows[0]], text_rows)],
    )


def _group_rows(
    grouped: GroupedTexts, telling: Sequence[Sequence[str]], n_typical: int
) -> list[dict[str, Any]]:
    """Return the facts of each group, with its typical texts, nearest to the centre first."""
    rows = []
    for group in range(grouped.n_groups):
        members = grouped.members(group)
        rows.append(
            {
                "group": group + 1,
                "n_texts": len(members),
                "cosine": float(grouped.cosines[members].mean()),
                "words": telling[group],
                "typical": grouped.typical(group, n_typical),
            }
        )
    return rows


def _agreement_report(
    column: str | None, n_labels: int, n_groups: int, scores: dict[str, float]
) -> Report:
    title = f"Agreement with {column}: {n_labels} labels, {n_groups} groups"
    listed = columns(*scores, kind="score", v_measure_by_chance="by chance", ari="ARI")
    return Report(title, listed, [scores], ["ARI is 0 by chance"])


def _text_rows(grouped: GroupedTexts) -> Iterator[dict[str, Any]]:
    """Yield a row for each text, with its group and its cosine to the centre of the group."""
    for position, text in enumerate(grouped.texts):
        row: dict[str, Any] = {"row": grouped.rows[position]}
        if grouped.ids is not None:
            row["id"] = grouped.ids[position]
        is_grouped = grouped.groups[position] != _NO_GROUP
        row["group"] = int(grouped.groups[position]) + 1 if is_grouped else None
        row["cosine"] = float(grouped.cosines[position]) if is_grouped else None
        if grouped.labels is not None:
            row["label"] = grouped.labels[position]
        row["text"] = text
        yield row


@plots.house_style()
def group_figure(grouped: GroupedTexts, names: Sequence[str]) -> plots.Figure:
    """Draw the texts by their first two principal components; the largest groups have colours."""
    # The principal components are the right singular vectors of the centred vectors.
    centred = grouped.units - grouped.units.mean(axis=0)
    _, singular_values, directions = np.linalg.svd(centred, full_matrices=False)
    if len(directions) == 1:  # vectors of one component have no second direction
        directions = np.pad(directions, ((0, 1), (0, 0)))
        singular_values = np.pad(singular_values, (0, 1))
    x, y = directions[:2] @ centred.T
    # Texts that are all equal have no variance; the floor avoids 0 / 0.
    shares = singular_values[:2] ** 2 / max(float((singular_values**2).sum()), 1e-12)

    figure, (axes,) = plots.new_figure(6.8, 4.8)
    # Texts in no group and in the smaller groups are grey.
    others = (grouped.groups == _NO_GROUP) | (grouped.groups >= _MOST_COLOURED)
    if others.any():
        axes.scatter(x[others], y[others], s=8, color=plots.LINE, label="other texts", linewidth=0)
    for group in range(min(grouped.n_groups, _MOST_COLOURED)):
        members = grouped.groups == group
        style: dict[str, Any] = {"color": plots.colour(group), "marker": plots.marker(group)}
        label = plots.shown(f"{group + 1}: {names[group]}")
        axes.scatter(x[members], y[members], s=12, label=label, linewidth=0, **style)
    axes.set_xlabel(f"first principal component ({shares[0]:.0%} of the variance)")
    axes.set_ylabel(f"second ({shares[1]:.0%})")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, markerscale=1.8)
    return figure
