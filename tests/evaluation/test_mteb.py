import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from helpers import Told
from simcse_cli.errors import ConfigError, DataError, MissingExtraError
from simcse_cli.progress import SilentProgress
from simcse_cli.results.result import SuiteResult
from simcse_cli.settings.choices import Precision

mteb = pytest.importorskip("mteb", reason="needs the extra mteb")

from simcse_cli.evaluation.eval_encoder import EvalEncoder  # noqa: E402
from simcse_cli.evaluation.mteb import category_means, run_mteb, select_tasks  # noqa: E402
from simcse_cli.evaluation.options import MtebOptions  # noqa: E402

WORDS = [
    "again",
    "a",
    "cat",
    "dog",
    "bird",
    "runs",
    "sleeps",
    "sings",
    "fast",
    "red",
    "green",
    "house",
    "river",
]


def make_pairs(n_pairs: int, seed: int) -> list[tuple[str, str, float]]:
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(n_pairs):
        left = list(rng.choice(WORDS, 6))
        shared = int(rng.integers(0, 6))
        right = left[:shared] + list(rng.choice(WORDS, 6 - shared))
        pairs.append((" ".join(left), " ".join(right) + " again", float(shared)))
    return pairs


@pytest.fixture
def hub_layout(tmp_path: Path) -> Path:
    """Folder with the STSBenchmark dataset laid out as on the Hub."""
    folder = tmp_path / "data" / "stsbenchmark-sts"
    folder.mkdir(parents=True)
    rows = [
        {"sentence1": a, "sentence2": b, "score": score} for a, b, score in make_pairs(40, seed=0)
    ]
    (folder / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "data"


@pytest.fixture
def senteval_layout(tmp_path: Path) -> Path:
    """Folder with STS-B and SICK in the SentEval layout, 30 pairs a file."""
    stsb, sick = (
        tmp_path / "senteval/downstream/STS/STSBenchmark",
        tmp_path / "senteval/downstream/SICK",
    )
    stsb.mkdir(parents=True)
    sick.mkdir(parents=True)
    for seed, name in enumerate(("sts-train.csv", "sts-dev.csv", "sts-test.csv")):
        lines = [f"g\tf\ty\t{i}\t{s}\t{a}\t{b}" for i, (a, b, s) in enumerate(make_pairs(30, seed))]
        (stsb / name).write_text("\n".join(lines) + "\n")
    for seed, name in enumerate(("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt")):
        lines = [
            f"{i}\t{a}\t{b}\t{s}\tNEUTRAL" for i, (a, b, s) in enumerate(make_pairs(30, 10 + seed))
        ]
        (sick / name).write_text("\n".join(["pair_ID\tA\tB\tscore\tlabel", *lines]) + "\n")
    return tmp_path / "senteval"


class WordBags:
    """Encoder that adds a random vector per word, later words weighing more; counts its sentences."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.vectors = {word: rng.standard_normal(8) for word in WORDS}
        self.n_encoded = 0

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        self.n_encoded += len(sentences)
        rows = [sum((9 + i) * self.vectors[w] for i, w in enumerate(s.split())) for s in sentences]
        return np.stack(rows).astype(np.float32)


def model(seed: int = 0, name: str = "bags") -> EvalEncoder:
    return EvalEncoder(name, None, f"digest{seed}", 8, Precision.FP32, WordBags(seed))


def run(
    tasks: list[str], data_dir: Path, tmp_path: Path, which: EvalEncoder, **options: object
) -> SuiteResult:
    chosen = select_tasks(tasks=tasks)
    progress = options.pop("progress", SilentProgress())
    chosen_options = MtebOptions(results_dir=tmp_path / "results", data_dir=data_dir, **options)
    return run_mteb(which, chosen, chosen_options, progress)


def oracle(encode: WordBags, pairs: list[tuple[str, str, float]]) -> float:
    left, right = encode([a for a, _, _ in pairs]), encode([b for _, b, _ in pairs])
    cosines = [
        u @ v / np.linalg.norm(u) / np.linalg.norm(v) for u, v in zip(left, right, strict=True)
    ]
    return float(spearmanr(cosines, [score for _, _, score in pairs])[0])


def test_local_dataset_folder_is_scored_by_mteb(hub_layout, tmp_path):
    result = run(["STSBenchmark"], hub_layout, tmp_path, model())
    assert result.scores["STSBenchmark"] == pytest.approx(
        oracle(WordBags(0), make_pairs(40, seed=0)), abs=1e-6
    )
    assert result.to_json()["tasks"]["STSBenchmark"]["data"] == "local"


def write_retrieval_folder(folder: Path, relevant: str) -> None:
    """Write a retrieval dataset laid out as on the Hub: one query, three documents, one of them relevant."""
    configs = {
        "default": ("test", "qrels.jsonl"),
        "corpus": ("corpus", "corpus.jsonl"),
        "queries": ("queries", "q.jsonl"),
    }
    folder.mkdir(parents=True)
    entries = "".join(
        f"- config_name: {name}\n  data_files:\n  - split: {split}\n    path: {file}\n"
        for name, (split, file) in configs.items()
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{entries}---\n")
    texts = {"d0": "a cat runs", "d1": "red house again", "d2": "green river"}
    rows = [json.dumps({"_id": name, "title": "", "text": text}) for name, text in texts.items()]
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    (folder / "q.jsonl").write_text(json.dumps({"_id": "q0", "text": "a cat runs"}))
    (folder / "qrels.jsonl").write_text(
        json.dumps({"query-id": "q0", "corpus-id": relevant, "score": 1})
    )


def test_retrieval_reads_a_folder_laid_out_as_on_the_hub(tmp_path):
    write_retrieval_folder(tmp_path / "data" / "mteb" / "scifact", relevant="d0")
    result = run(["SciFact"], tmp_path / "data", tmp_path, model())
    assert (result.scores["SciFact"], result.tasks["SciFact"].extra["metric"]) == (
        1.0,
        "ndcg_at_10",
    )


def test_an_aggregate_is_the_mean_of_its_parts_and_follows_their_data(tmp_path):
    (aggregate,) = select_tasks(tasks=["CQADupstackRetrieval"])
    names = [part.metadata.name for part in aggregate.metadata.tasks]
    for name in names[:6]:
        write_retrieval_folder(tmp_path / "data" / name, relevant="d0")
    for name in names[6:]:
        write_retrieval_folder(tmp_path / "data" / name, relevant="d1")
    whole = run(["CQADupstackRetrieval"], tmp_path / "data", tmp_path, model())
    parts = run(names, tmp_path / "data", tmp_path, model())
    assert whole.scores["CQADupstackRetrieval"] == pytest.approx(parts.average, abs=1e-5)
    assert all(part.extra["cached"] for part in parts.tasks.values())
    qrels = tmp_path / "data" / names[0] / "qrels.jsonl"
    qrels.write_text(qrels.read_text().replace("d0", "d1"))
    changed = run(["CQADupstackRetrieval"], tmp_path / "data", tmp_path, model())
    assert changed.scores["CQADupstackRetrieval"] < whole.scores["CQADupstackRetrieval"]


def test_senteval_files_serve_the_test_split_of_sts_benchmark(senteval_layout, tmp_path):
    result = run(["STSBenchmark"], senteval_layout, tmp_path, model())
    assert result.scores["STSBenchmark"] == pytest.approx(
        oracle(WordBags(0), make_pairs(30, seed=2)), abs=1e-6
    )


def test_sick_is_scored_on_train_trial_and_test_together(senteval_layout, tmp_path):
    pairs = [pair for seed in (10, 11, 12) for pair in make_pairs(30, seed)]
    result = run(["SICKRelatedness"], senteval_layout, tmp_path, model())
    assert result.scores["SICK-R"] == pytest.approx(oracle(WordBags(0), pairs), abs=1e-6)


def test_two_models_get_two_scores_from_one_results_folder(hub_layout, tmp_path):
    first, second = (run(["STSBenchmark"], hub_layout, tmp_path, model(seed)) for seed in (0, 1))
    assert first.scores["STSBenchmark"] != second.scores["STSBenchmark"]
    again = run(["STSBenchmark"], hub_layout, tmp_path, model(0))
    assert again.scores["STSBenchmark"] == first.scores["STSBenchmark"]


def test_finished_tasks_are_not_encoded_again(hub_layout, tmp_path):
    run(["STSBenchmark"], hub_layout, tmp_path, model())
    second = model()
    result = run(["STSBenchmark"], hub_layout, tmp_path, second)
    assert second.encode.n_encoded == 0
    assert result.tasks["STSBenchmark"].extra["cached"]


def test_results_of_version_1_0_0_are_named_and_not_used(hub_layout, tmp_path):
    """Their revision begins with the digest of then, which leaves out the tokenizer."""
    older, now = (replace(model(), digest=digest) for digest in ("0" * 64, f"2-{'0' * 64}"))
    run(["STSBenchmark"], hub_layout, tmp_path, older)
    progress = Told()
    result = run(["STSBenchmark"], hub_layout, tmp_path, now, progress=progress)
    assert not result.tasks["STSBenchmark"].extra["cached"]
    (said,) = progress.hints
    assert f"{'0' * 64}-fp32 is of simcse 1.0.0" in said
    assert said.endswith(": its tasks are scored again; remove it")


def test_rerun_runs_finished_tasks_again(hub_layout, tmp_path):
    run(["STSBenchmark"], hub_layout, tmp_path, model())
    second = model()
    assert (
        not run(["STSBenchmark"], hub_layout, tmp_path, second, rerun=True)
        .tasks["STSBenchmark"]
        .extra["cached"]
    )
    assert second.encode.n_encoded > 0


def test_changed_local_data_are_scored_again(hub_layout, tmp_path):
    before = run(["STSBenchmark"], hub_layout, tmp_path, model())
    path = hub_layout / "stsbenchmark-sts" / "test.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:20]))
    after = run(["STSBenchmark"], hub_layout, tmp_path, model())
    assert after.scores["STSBenchmark"] == pytest.approx(
        oracle(WordBags(0), make_pairs(40, seed=0)[:20]), abs=1e-6
    )
    assert (
        after.tasks["STSBenchmark"].extra["dataset_revision"]
        != before.tasks["STSBenchmark"].extra["dataset_revision"]
    )


def test_a_result_cut_off_while_written_is_run_again(hub_layout, tmp_path):
    first = run(["STSBenchmark"], hub_layout, tmp_path, model())
    (path,) = (tmp_path / "results").rglob("STSBenchmark.json")
    path.write_text(path.read_text()[:100])
    assert (
        run(["STSBenchmark"], hub_layout, tmp_path, model()).scores["STSBenchmark"]
        == first.scores["STSBenchmark"]
    )


def test_results_are_in_the_format_of_mteb(hub_layout, tmp_path):
    result = run(["STSBenchmark"], hub_layout, tmp_path, model(name="my/model"))
    path = tmp_path / "results/results/my__model/digest0-fp32/STSBenchmark.json"
    stored = mteb.results.TaskResult.from_disk(path)
    assert stored.get_score() == result.scores["STSBenchmark"]
    assert json.loads((path.parent / "model_meta.json").read_text())["revision"] == "digest0-fp32"


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    monkeypatch.setattr("simcse_cli.data.mteb_files.is_reachable", lambda endpoint: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def test_a_task_without_data_is_left_out_with_the_reason(hub_layout, tmp_path):
    progress = SilentProgress()
    result = run(["STSBenchmark", "BIOSSES"], hub_layout, tmp_path, model(), progress=progress)
    assert result.scores["BIOSSES"] is None
    assert result.average == result.scores["STSBenchmark"]
    assert "mteb/biosses-sts is not on this machine" in result.missing["BIOSSES"]
    assert "BIOSSES is left out" in progress.warnings[0]


def test_without_any_data_the_error_says_how_to_get_them(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="mteb/biosses-sts is not on this machine") as caught:
        run(["BIOSSES"], tmp_path / "empty", tmp_path, model())
    assert "hf download mteb/biosses-sts --repo-type dataset" in (caught.value.hint or "")


def test_a_local_folder_of_another_layout_is_named(hub_layout, tmp_path):
    (hub_layout / "stsbenchmark-sts" / "test.jsonl").write_text(
        '{"left": "a cat", "right": "a dog", "score": 1}\n'
    )
    with pytest.raises(
        DataError, match="stsbenchmark-sts is not laid out as STSBenchmark needs it"
    ):
        run(["STSBenchmark"], hub_layout, tmp_path, model())


def test_the_default_benchmark_has_the_56_datasets_of_the_papers():
    counts: dict[str, int] = {}
    for task in select_tasks():
        counts[task.metadata.type] = counts.get(task.metadata.type, 0) + 1
    assert counts == {
        "Classification": 12,
        "Clustering": 11,
        "PairClassification": 3,
        "Reranking": 4,
        "Retrieval": 15,
        "STS": 10,
        "Summarization": 1,
    }


def test_tasks_of_the_benchmark_bring_its_subsets_and_splits():
    chosen = {
        task.metadata.name: task for task in select_tasks(tasks=["STS17", "STS22", "MSMARCO"])
    }
    assert list(chosen["STS17"].hf_subsets) == ["en-en"]
    assert list(chosen["STS22"].hf_subsets) == ["en"]
    assert list(chosen["MSMARCO"].eval_splits) == ["dev"]


def test_tasks_outside_the_benchmark_can_be_named():
    assert [task.metadata.name for task in select_tasks(tasks=["STS22.v2", "STS12"])] == [
        "STS22.v2",
        "STS12",
    ]


def test_categories_restrict_the_tasks():
    assert len(select_tasks(categories=["sts", "Summarization"])) == 11
    assert len(select_tasks(benchmark="MTEB(eng, v2)", categories=["STS"])) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ["STS99"]}, "'STS99' not found"),
        ({"tasks": ["STSBenchmrk"]}, "Did you mean: 'STSBenchmark"),
        ({"benchmark": "MTEB(eng, v9)"}, "Did you mean"),
        ({"categories": ["Parsing"]}, "no category Parsing"),
    ],
)
def test_unknown_names_are_refused(options, message):
    with pytest.raises(ConfigError) as caught:
        select_tasks(**options)
    assert message in caught.value.message


def test_without_mteb_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(
        MissingExtraError, match=r"needs the package mteb: .*pip install 'simcse-cli\[mteb\]'"
    ):
        select_tasks()


def test_an_encoder_that_lacks_sentences_keeps_its_own_hint(hub_layout, tmp_path):
    def lacking(sentences: Sequence[str]) -> np.ndarray:
        raise DataError("sentences.txt lacks 3 sentences", hint="write them first")

    with pytest.raises(DataError, match=r"mteb STSBenchmark: sentences\.txt lacks 3") as caught:
        run(
            ["STSBenchmark"],
            hub_layout,
            tmp_path,
            EvalEncoder("m", None, "d", 8, Precision.FP32, lacking),
        )
    assert caught.value.hint == "write them first"


def test_averages_are_over_datasets_and_leave_out_missing_ones():
    scores = {"A": 0.9, "B": 0.7, "C": 0.2, "D": None}
    categories = {"A": "STS", "B": "STS", "C": "Retrieval", "D": "Retrieval"}
    figures = category_means(categories, scores)
    assert list(figures["categories"]) == ["Retrieval", "STS"]
    assert figures["categories"]["STS"] == {
        "n_tasks": 2,
        "n_scored": 2,
        "score": pytest.approx(0.8),
    }
    assert figures["categories"]["Retrieval"] == {
        "n_tasks": 2,
        "n_scored": 1,
        "score": pytest.approx(0.2),
    }
    assert (figures["n_tasks"], figures["n_scored"]) == (4, 3)


def test_tasks_choose_their_prompt_by_name_type_and_role(hub_layout, tmp_path):
    asked = []

    def encode(sentences: Sequence[str], *, prompt: str = "none") -> np.ndarray:
        asked.append(prompt)
        return WordBags(0)(sentences)

    def prompts_used(prompts: dict[str, str], task: str, data_dir: Path) -> list[str]:
        asked.clear()
        results = tmp_path / f"results{len(list(tmp_path.iterdir()))}"
        which = EvalEncoder("m", None, "d", 8, Precision.FP32, encode, prompts=prompts)
        run_mteb(
            which, select_tasks(tasks=[task]), MtebOptions(results_dir=results, data_dir=data_dir)
        )
        return list(dict.fromkeys(asked))

    assert prompts_used({}, "STSBenchmark", hub_layout) == ["none"]
    assert prompts_used({"query": "q: "}, "STSBenchmark", hub_layout) == ["none"]
    assert prompts_used({"STS": "s: ", "query": "q: "}, "STSBenchmark", hub_layout) == ["s: "]
    assert prompts_used({"STS": "s: ", "STSBenchmark": "b: "}, "STSBenchmark", hub_layout) == [
        "b: "
    ]
    write_retrieval_folder(tmp_path / "retrieval" / "mteb" / "scifact", "d0")
    used = prompts_used({"query": "q: ", "passage": "p: "}, "SciFact", tmp_path / "retrieval")
    assert sorted(used) == ["p: ", "q: "]


def test_long_name_of_letters_of_several_bytes_names_a_folder(hub_layout, tmp_path):
    result = run(["STSBenchmark"], hub_layout, tmp_path, model(name="模" * 120))
    assert result.scores["STSBenchmark"] is not None
