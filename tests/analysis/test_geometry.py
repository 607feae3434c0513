from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from analysis.cases import space
from simcse_cli.analysis.geometry import describe_geometry, geometry_analysis, geometry_figure
from simcse_cli.analysis.spectrum import describe_spectrum, prepare_rows
from simcse_cli.evaluation.alignment import (
    alignment,
    mean_cosine,
    rated_above,
    scale_note,
    uniformity,
)
from simcse_cli.results.plots import COLOUR_MAP, save_figure

SCORE = "STS-B test, Spearman x 100"
ANTIPODAL = np.array([[3.0, 0.0], [-0.5, 0.0]])


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(203, 12)) + 0.4


def direct_uniformity(vectors: np.ndarray, t: float) -> float:
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return float(np.log(np.exp(-t * pdist(units, "sqeuclidean")).mean()))


def test_uniformity_of_antipodal_rows_is_minus_eight():
    assert uniformity(ANTIPODAL) == pytest.approx(-8.0, abs=1e-12)


def test_uniformity_of_orthogonal_rows_is_minus_two_t():
    assert uniformity(np.eye(5), t=3.0) == pytest.approx(-6.0, abs=1e-12)


def test_uniformity_of_equal_rows_is_zero():
    assert uniformity(np.ones((4, 3))) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("block_rows", [1, 7, 64, 202, 203, 4096])
def test_uniformity_in_blocks_equals_the_direct_formula(vectors, block_rows):
    assert abs(uniformity(vectors, block_rows=block_rows) - direct_uniformity(vectors, 2.0)) < 1e-10


def test_uniformity_does_not_underflow_at_a_large_t():
    assert uniformity(ANTIPODAL, t=1000.0) == pytest.approx(-4000.0)


def test_uniformity_ignores_order_and_norms(vectors):
    shuffled = (
        np.random.default_rng(0).permutation(vectors) * np.linspace(0.1, 9, len(vectors))[:, None]
    )
    assert uniformity(shuffled) == pytest.approx(uniformity(vectors), abs=1e-12)


def test_uniformity_of_float32_rows_equals_their_float64_copy(vectors):
    single = vectors.astype(np.float32)
    assert uniformity(single) == uniformity(single.astype(np.float64))


def test_uniformity_leaves_its_input_unchanged(vectors):
    before = vectors.copy()
    uniformity(vectors)
    np.testing.assert_array_equal(vectors, before)


@pytest.mark.parametrize("shape", [(1, 3), (0, 3), (4,)])
def test_uniformity_needs_two_rows(shape):
    with pytest.raises(ValueError, match="at least 2"):
        uniformity(np.ones(shape))


def test_alignment_closed_forms():
    east, north = np.array([[2.0, 0.0]]), np.array([[0.0, 5.0]])
    assert alignment(east, east) == 0
    assert alignment(east, north) == pytest.approx(2.0)
    assert alignment(east, -east) == pytest.approx(4.0)


def test_alignment_is_two_minus_two_mean_cosines(vectors):
    left, right = vectors[:100], vectors[100:200]
    cosines = [
        u @ v / np.linalg.norm(u) / np.linalg.norm(v) for u, v in zip(left, right, strict=True)
    ]
    assert alignment(left, right) == pytest.approx(2 - 2 * np.mean(cosines), abs=1e-12)


@pytest.mark.parametrize("shapes", [((2, 3), (3, 3)), ((0, 3), (0, 3))])
def test_alignment_needs_matching_pairs(shapes):
    with pytest.raises(ValueError, match="need the same"):
        alignment(np.ones(shapes[0]), np.ones(shapes[1]))


def test_mean_cosine_equals_the_double_loop(vectors):
    units = [row / np.linalg.norm(row) for row in vectors[:20]]
    oracle = np.mean([units[i] @ units[j] for i in range(20) for j in range(i)])
    assert mean_cosine(vectors[:20]) == pytest.approx(oracle, abs=1e-12)


def test_mean_cosine_of_antipodal_rows_is_minus_one():
    assert mean_cosine(ANTIPODAL) == pytest.approx(-1.0)


def test_describe_geometry_uses_only_pairs_strictly_above_the_threshold():
    left, right = np.array([[1.0, 0], [1, 0], [1, 0]]), np.array([[1.0, 0], [0, 1], [-1, 0]])
    rows = np.concatenate([left, right])
    spectrum = describe_spectrum(prepare_rows(rows))
    assert describe_geometry(space(left, right, [4.5, 4.2, 4.0], average=0.7)) == pytest.approx(
        {
            "dim": 2,
            "n_positives": 2,
            "n_sentences": 6,
            "alignment": 1.0,
            "uniformity": uniformity(rows),
        }
        | {"effective_rank": spectrum.effective_rank, "isotropy": spectrum.isotropy}
        | {"mean_cosine": mean_cosine(rows), "score": 1.0, "sts_average": 0.7}
    )


def test_without_a_positive_pair_alignment_is_missing_and_nothing_else():
    without = describe_geometry(space(np.eye(2), np.eye(2), [1.0, 4.0]))
    with_one = describe_geometry(space(np.eye(2), np.eye(2), [1.0, 4.5]))
    assert without == with_one | {"n_positives": 0, "alignment": None}


@pytest.mark.parametrize(
    ("gold", "words"), [([0.0, 4.5], "4"), ([0.0, 0.9], "0.8"), ([1.0, 7.0], "8")]
)
def test_the_text_says_above_which_rating_pairs_are_positive(gold, words):
    assert rated_above(np.array(gold)) == words


@pytest.mark.parametrize(
    ("gold", "scale", "above"),
    [([1, 4, 7], "0 to 10", "8"), ([0, 3, 4], "0 to 5", "4"), ([-1, 0, 1], "-1 to 1", "0.6")],
)
def test_a_scale_that_is_not_that_of_sts_or_has_no_positive_pair_is_told(gold, scale, above):
    found = geometry_analysis([space(np.eye(3), np.eye(3), gold)])
    assert (
        f"a scale from {scale}: pairs rated above {above} are positive" in found.tables[0].notes[-1]
    )
    assert found.payload["rating_scale"] == tuple(map(float, scale.split(" to ")))


def test_the_scale_of_sts_is_not_told():
    assert scale_note(np.array([1.0, 4.5])) is None


def model(
    label: str, alignment: float, uniformity: float, score: float | None = None
) -> dict[str, Any]:
    return {"label": label, "alignment": alignment, "uniformity": uniformity, "score": score}


def test_geometry_figure_names_every_point_and_colours_by_score():
    figure = geometry_figure([model("one", 0.2, -2.0, 0.7), model("two", 0.3, -3.0, 0.8)], SCORE)
    assert [text.get_text() for text in figure.axes[0].texts] == ["one", "two"]
    (spots,) = figure.axes[0].collections
    assert spots.get_array().tolist() == [70.0, 80.0]
    assert spots.get_cmap().name == COLOUR_MAP
    assert figure.axes[1].get_ylabel() == SCORE


def test_geometry_figure_shows_close_models_close_with_labels_apart():
    models = [model("one", 0.2482, -3.8110, 0.8203), model("two", 0.2485, -3.8125, 0.8204)]
    figure = geometry_figure(models, SCORE)
    axes, bar = figure.axes
    low, high = axes.get_xlim()
    assert high - low == pytest.approx(0.05)
    assert bar.get_ylim() == pytest.approx((81.535, 82.535))
    figure.draw_without_rendering()
    boxes = [tick.get_window_extent() for tick in axes.get_xticklabels() if tick.get_text()]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.parametrize("average", [None, 0.5])
def test_geometry_figure_colours_by_averages_only_if_all_models_have_one(average):
    models = [model("one", 0.2, -2.0, 0.7), model("two", 0.3, -3.0, 0.8)]
    for each, own in zip(models, (average, 0.6), strict=True):
        each["sts_average"] = own
    axes, bar = geometry_figure(models, SCORE).axes
    assert axes.collections[0].get_array().tolist() == ([50.0, 60.0] if average else [70.0, 80.0])
    assert bar.get_ylabel() == ("average STS, Spearman x 100" if average else SCORE)


def test_geometry_figure_without_a_score_for_each_model_has_no_colour_bar():
    for models in (
        [model("one", 0.2, -2.0)],
        [model("one", 0.2, -2.0), model("two", 0.3, -3.0, 0.8)],
    ):
        assert len(geometry_figure(models, SCORE).axes) == 1


@pytest.mark.parametrize(
    ("data", "heading", "colours"),
    [
        ("STS-B", "STS-B test", "STS-B test, Spearman x100"),
        ("STS-B dev", "STS-B dev", "STS-B dev, Spearman x100"),
        ("mine.csv", "Spearman", "Spearman x100"),
        ("STS-B-like.csv", "Spearman", "Spearman x100"),
    ],
)
def test_geometry_analysis_says_what_the_score_is(data, heading, colours):
    left, right = np.array([[1.0, 0], [1, 0], [1, 0]]), np.array([[1.0, 0], [0, 1], [-1, 0]])
    spaces = [space(left, right, [5.0, 4.5, 0], data=data, label=name) for name in ("one", "two")]
    found = geometry_analysis(spaces)
    (table,) = found.tables
    assert table.title == f"Geometry on {data}: 2 positive pairs, 6 sentences"
    measures = ["alignment", "uniformity", "eff. rank", "isotropy", "mean cosine", heading]
    assert [column.heading for column in table.columns] == ["model", *measures]
    assert found.figure().axes[1].get_ylabel() == colours
    assert "\n  B  two\n" in found.terminal_plot()
    (single,) = geometry_analysis([space(left, right, [5.0, 4.5, 0], data=data)]).tables
    assert single.title == table.title
    spaces[1].average = 0.5
    (table,) = geometry_analysis(spaces).tables
    assert [row[-1] for row in table.cells()] == ["–", "50.00"]


def test_labels_of_close_points_do_not_cover_each_other():
    models = [model(f"model number {i}", 0.2 + i / 500, -2.0) for i in range(4)]
    figure = geometry_figure(models, SCORE)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_models_at_one_point_share_a_label():
    models = [model("one", 0.2, -2.0), model("far", 0.4, -1.0), model("same", 0.2, -2.0)]
    labels = geometry_figure(models, SCORE).axes[0].texts
    assert [label.get_text() for label in labels] == ["one, same", "far"]


LONG = "Unsupervised SimCSE on MiniLM-L6, temperature 0.2, lr 2e-4 x"


@pytest.mark.parametrize(("n_models", "step"), [(2, 0.02), (7, 0.01), (10, 0.002)])
def test_long_labels_leave_the_axes_wide_and_lie_apart(tmp_path, n_models, step):
    models = [model(f"{i} {LONG}", 0.2 + i * step, -2.0 - i * step, 0.7) for i in range(n_models)]
    figure = geometry_figure(models, SCORE)
    save_figure(figure, tmp_path / "figure.png")  # a warning would be an error
    axes = figure.axes[0]
    frame = axes.get_window_extent()
    assert frame.width > 0.6 * figure.bbox.width
    assert frame.height > 300
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes)
    if n_models == 2:
        assert [text.get_text().replace("\n", " ") for text in axes.texts] == [
            each["label"] for each in models
        ]
        assert not figure.legends
    else:
        assert [text.get_text() for text in axes.texts] == [str(i + 1) for i in range(n_models)]
        (key,) = figure.legends
        assert [text.get_text().replace("\n", " ") for text in key.get_texts()] == [
            f"{i + 1}: {each['label']}" for i, each in enumerate(models)
        ]
        box = key.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width
        assert box.y1 < frame.y0
