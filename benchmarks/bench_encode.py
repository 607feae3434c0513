"""Encoding against sentence-transformers, on the same sentences in alternating runs.

    python benchmarks/bench_encode.py [--sentences 4000] [--rounds 5] [--json FILE]
    python benchmarks/bench_encode.py --device cuda --model random:bert-base --sentences 100000

Prints sentences per second, the ratio to sentence-transformers' default, useful GFLOP/s as a share
of the matrix-multiply peak measured in the same run, and the least cosine to sentence-transformers'
fp32 vectors.
"""

import argparse
import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from measure import Peaks, alternate, arguments, machine, report, types, useful_flops, wikipedia
from shapes import model_folder
from simcse_cli.machine.precision import DTYPES
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode
from simcse_cli.models.graphs import GRAPH_FILES, write_graphs
from simcse_cli.models.padding import pad, token_batches
from simcse_cli.settings.choices import Attention, Backend, Pooler, Precision

BASELINE = "sentence-transformers fp32, default"
Contender = Callable[[], np.ndarray]


def peers(
    folder: str, sentences: list[str], device: str, batch_sizes: Sequence[int]
) -> dict[str, Contender]:
    """Return the peers that run here: sentence-transformers as it comes and in other batch sizes, OpenVINO on a CPU."""
    from sentence_transformers import SentenceTransformer

    settings: dict[str, dict[str, Any]] = {BASELINE: {}}
    if "bf16" in types(device):
        settings["sentence-transformers bf16 weights"] = {"model_kwargs": {"dtype": torch.bfloat16}}
    contenders: dict[str, Contender] = {}
    for name, options in settings.items():
        model = SentenceTransformer(folder, device=device, **options)
        contenders[name] = lambda model=model: model.encode(sentences, show_progress_bar=False)
        for size in batch_sizes:
            contenders[f"{name}, batch {size}"] = lambda model=model, size=size: model.encode(
                sentences, batch_size=size, show_progress_bar=False
            )
    if device != "cpu":
        return contenders
    if importlib.util.find_spec("openvino"):
        for precision in types(device):
            name = f"OpenVINO {precision}, batches as sentence-transformers"
            contenders[name] = openvino_loop(folder, sentences, precision)
    else:
        print("OpenVINO is left out: pip install 'simcse-cli[bench]'")
    for is_static, kind in ((False, "dynamic"), (True, "static")):
        if importlib.util.find_spec("nncf"):
            contenders[f"OpenVINO int8, {kind}, same batches"] = openvino_loop(
                folder, sentences, "fp32", int8="static" if is_static else "dynamic"
            )
        if importlib.util.find_spec("onnxruntime"):
            contenders[f"ONNX Runtime int8, {kind}, same batches"] = onnx_int8_loop(
                folder, sentences, is_static=is_static
            )
    return contenders


def openvino_loop(
    folder: str, sentences: list[str], precision: str, *, int8: str = ""
) -> Contender:
    """Return OpenVINO on the batches that ``SentenceTransformer.encode`` makes: 32, sorted by characters.

    ``int8`` quantises by NNCF: ``dynamic`` the weights (OpenVINO rounds activations where that
    pays), ``static`` both, calibrated on other sentences.

    sentence-transformers' own OpenVINO backend needs optimum-intel, which wants an older
    transformers; this compiles the same graph with the same hint.
    """
    import openvino

    model, tokenizer = (
        AutoModel.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    example = tokenizer(["An example.", "One."], padding=True, return_tensors="pt")
    names = [name for name in tokenizer.model_input_names if name in example]
    graph = openvino.convert_model(model, example_input={name: example[name] for name in names})
    if int8:
        import nncf

        samples = [
            {name: inputs[name] for name in names}
            for inputs in calibration(tokenizer, len(sentences))
        ]
        graph = (
            nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_SYM)
            if int8 == "dynamic"
            else nncf.quantize(graph, nncf.Dataset(samples), model_type=nncf.ModelType.TRANSFORMER)
        )
    hint = {"bf16": "bf16", "fp32": "f32"}[precision]
    settings = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = openvino.Core().compile_model(graph, "CPU", settings)
    return loop_like_peer(
        sentences, tokenizer, lambda inputs: compiled({name: inputs[name] for name in names})[0]
    )


def calibration(tokenizer: Any, n_before: int) -> Iterator[Any]:
    """Yield tokens of 128 sentences that no contender encodes, one at a time."""
    for sentence in wikipedia(n_before + 128)[n_before:]:
        yield tokenizer([sentence], truncation=True, max_length=256, return_tensors="np")


def onnx_int8_loop(folder: str, sentences: list[str], *, is_static: bool) -> Contender:
    """Return ONNX Runtime on the same batches, with weights and activations quantised by its own tools."""
    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic, quantize_static

    tokenizer = AutoTokenizer.from_pretrained(folder)
    with tempfile.TemporaryDirectory() as work:
        write_graphs(load_encoder(folder, pooler=Pooler.AVG), Path(work), [Backend.ONNX])
        large, small = Path(work) / GRAPH_FILES[Backend.ONNX], Path(work) / "int8.onnx"
        if is_static:
            quantize_static(large, small, Calibration(tokenizer, len(sentences), large))
        else:
            quantize_dynamic(large, small)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(small, settings, providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in session.get_inputs()]
    return loop_like_peer(
        sentences,
        tokenizer,
        lambda inputs: session.run(None, {name: inputs[name] for name in names})[0],
    )


class Calibration:
    """What ``quantize_static`` reads: the inputs of a graph, one sentence after the other, then None."""

    def __init__(self, tokenizer: Any, n_before: int, graph: Path) -> None:
        import onnx

        names = [tensor.name for tensor in onnx.load(graph).graph.input]
        self._inputs = (
            {n: inputs[n] for n in names} for inputs in calibration(tokenizer, n_before)
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next sentence."""
        return next(self._inputs, None)


def loop_like_peer(
    sentences: list[str], tokenizer: Any, states_of: Callable[[Any], np.ndarray]
) -> Contender:
    """Return a loop over the batches that ``SentenceTransformer.encode`` makes: 32, sorted by characters."""
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))

    def run() -> np.ndarray:
        vectors = []
        for start in range(0, len(order), 32):
            texts = [sentences[i] for i in order[start : start + 32]]
            inputs = tokenizer(
                texts, padding=True, truncation=True, max_length=256, return_tensors="np"
            )
            states = states_of(inputs)
            weights = inputs["attention_mask"][:, :, None]
            vectors.append((states * weights).sum(1) / weights.sum(1))
        return np.concatenate(vectors).astype(np.float32)[np.argsort(order)]

    return run


def plain_loop(folder: str, sentences: list[str], dtype: torch.dtype) -> Contender:
    """Return a loop over length-sorted padded batches of 2,048 tokens with ``AutoModel`` and mean pooling."""
    model, tokenizer = (
        AutoModel.from_pretrained(folder, dtype=dtype).eval(),
        AutoTokenizer.from_pretrained(folder),
    )

    @torch.inference_mode()
    def run() -> np.ndarray:
        rows = tokenizer(sentences, truncation=True, max_length=256)["input_ids"]
        vectors = np.empty((len(rows), model.config.hidden_size), dtype=np.float32)
        for batch in token_batches([len(row) for row in rows], 2048):
            ids, mask = pad([rows[i] for i in batch], tokenizer.pad_token_id)
            states = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            weights = mask.unsqueeze(-1).float()
            vectors[batch] = ((states * weights).sum(1) / weights.sum(1)).numpy()
        return vectors

    return run


def ours(
    folder: str, sentences: list[str], precision: str, device: str, *, packed: bool = False
) -> Contender:
    """Return this toolkit in one precision; ``packed`` without padding on a GPU too."""
    encoder = load_encoder(
        folder, pooler=Pooler.AVG, device=device, precision="fp32" if packed else precision
    )
    if packed:
        encoder.attend_by(Attention.PACKED)
        encoder.compute_in(DTYPES[Precision(precision)])
    return lambda: encode(encoder, sentences)


def least_cosine(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the least cosine between rows of equal number."""
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    return float(((found * expected).sum(1) / norms).min())


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--sentences", type=int, default=4000)
    parser.add_argument(
        "--peer-batches",
        type=int,
        nargs="*",
        default=[],
        help="batch sizes of the peer, besides its default",
    )
    parser.add_argument(
        "--plot", type=Path, help="write a picture of error against rate to this file"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sentences = wikipedia(options.sentences)
    with tempfile.TemporaryDirectory() as work:
        measure(options, sentences, model_folder(options.model, Path(work)))


def measure(options: argparse.Namespace, sentences: list[str], folder: str) -> None:
    """Time the contenders on one model and print the table."""
    device = options.device
    contenders = peers(folder, sentences, device, options.peer_batches)
    if device == "cpu":
        for name, dtype in types(device).items():
            contenders[f"length-sorted padded loop {name}"] = plain_loop(folder, sentences, dtype)
    for precision in [*types(device), *(["int8"] if device == "cpu" else [])]:
        contenders[f"simcse {precision}"] = ours(folder, sentences, precision, device)
    if device == "cuda":
        contenders["simcse tf32"] = ours(folder, sentences, "tf32", device)
        contenders["simcse bf16, packed"] = ours(folder, sentences, "bf16", device, packed=True)
    if options.only:
        contenders = {
            k: run
            for k, run in contenders.items()
            if k == BASELINE or any(part in k for part in options.only)
        }
    vectors = {}
    for name, run in list(contenders.items()):
        try:
            vectors[name] = run()
        except ValueError as error:  # OpenVINO's int8 graphs return nothing where newer instructions are switched off
            print(f"{name} is left out: {error}")
            del contenders[name]
    timings = alternate(contenders, options.rounds, warm_up=False)

    encoder = load_encoder(folder, pooler=Pooler.AVG, device="cpu")
    flops = useful_flops(encoder.config, [len(row) for row in encoder.tokenize(sentences)])
    peaks = Peaks.measured(options.clock, device)
    rows = []
    medians = {name: timing.median(options.clock) for name, timing in timings.items()}
    best_peer = min(seconds for name, seconds in medians.items() if not name.startswith("simcse"))
    for name, timing in timings.items():
        seconds = medians[name]
        rows.append(
            {
                "setting": name,
                "sentences/s": len(sentences) / seconds,
                "ratio to default": medians[BASELINE] / seconds,
                "ratio to best peer": best_peer / seconds,
                "useful GFLOP/s": flops / seconds / 1e9,
                **peaks.shares(name, flops / seconds / 1e9),
                "least cosine": least_cosine(vectors[name], vectors[BASELINE]),
                "runs, s": " ".join(f"{run:.2f}" for run in getattr(timing, options.clock)),
            }
        )
    facts = {
        "sentences": len(sentences),
        "tokens per sentence": sum(map(len, encoder.tokenize(sentences))) / len(sentences),
        "clock": options.clock,
        **peaks.facts(),
        **machine(device),
    }
    report("Encoding", rows, facts, options.json)
    if options.plot is not None:
        plot(rows, options.plot)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the error of each contender, 1 minus its least cosine, against its rate."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        rate, error = row["sentences/s"], max(1 - row["least cosine"], 1e-6)
        is_ours = row["setting"].startswith("simcse")
        axes.plot(rate, error, "o" if is_ours else "s", color="tab:red" if is_ours else "tab:gray")
        name = row["setting"].replace("sentence-transformers", "ST").removeprefix("length-sorted ")
        name = (
            name.removesuffix(" batches")
            .removesuffix(", same")
            .removesuffix(", default")
            .split(", batch")[0]
        )
        axes.annotate(
            name, (rate, error), xytext=(3, 5), textcoords="offset points", rotation=25, fontsize=8
        )
    axes.set(xlabel="sentences/s", ylabel="1 - least cosine to fp32", yscale="log")
    axes.margins(0.2)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
