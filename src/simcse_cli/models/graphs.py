"""Write the transformer of a model as a graph for ONNX Runtime and OpenVINO.

The extras are ``onnx`` and ``openvino``.

The files are where the backends of sentence-transformers look for them. A graph gives the states of
the last layer; pooler and head are not part of it. Graphs of 8-bit integers are made by the tools
of the two projects, without sample texts. In ONNX Runtime, the inputs of a layer are rounded with
one scale per batch; OpenVINO gets rounded weights and decides by itself how to multiply by them.
"""

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from simcse_cli.arrays import Integers
from simcse_cli.errors import CheckpointError, MissingExtraError, require_extra
from simcse_cli.files.schema import foreign_format
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.padding import pad
from simcse_cli.models.poolers import POOLERS
from simcse_cli.settings.choices import Backend

GRAPH_FILES = {
    "onnx": "onnx/model.onnx",
    "openvino": "openvino/openvino_model.xml",
    "onnx_int8": "onnx/model_qint8.onnx",
    "openvino_int8": "openvino/openvino_model_qint8.xml",
}
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_OUTPUT = "last_hidden_state"
_OPSET = 18  # the oldest that the exporter writes; ONNX Runtime reads it since 1.14
_LARGEST_FILE = 2_000_000_000  # bytes in one ONNX file
_EXAMPLE = [[5, 6, 7], [5, 6, 7, 8, 9]]

GraphPass = Callable[[Tensor, Tensor], Tensor]


def require_backend(backend: Backend, *, quantize: bool = False) -> None:
    """Raise MissingExtraError if a package for a backend is not installed.

    Packages are needed for the backend itself, for the export and for ``quantize``.
    """
    package = "onnxruntime" if backend is Backend.ONNX else "openvino"
    require_extra(package, f"--backend {backend}")
    require_extra("onnxscript", f"--backend {backend}")
    if quantize and backend is Backend.OPENVINO:
        require_extra("nncf", f"--backend {backend} --quantize int8")


class _LastStates(nn.Module):
    """A transformer that takes its inputs by position and returns the last layer's states alone."""

    def __init__(self, backbone: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.backbone = backbone
        self.names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        named = dict(zip(self.names, inputs, strict=True))
        states: Tensor = self.backbone(**named).last_hidden_state
        return states


def write_graphs(
    encoder: SentenceEncoder, folder: Path, backends: Collection[Backend], *, quantize: bool = False
) -> None:
    """Write the graphs of an encoder into its model folder, for the CPU.

    They are in float32 and, with ``quantize``, in 8-bit integers as well.
    """
    if not backends:
        return

    # What no graph can hold is refused before the slow export.
    name = encoder.name
    hint = "leave --backend out"
    if encoder.record.template is not None:
        raise CheckpointError(
            f"--backend: {name} has the pooler mask, and no backend puts its template around a "
            "text",
            hint=hint,
        )
    if POOLERS[encoder.pooler].needs_all_layers:
        raise CheckpointError(
            f"--backend: {name} has the pooler {encoder.pooler}, and a graph gives the last layer "
            "alone",
            hint=hint,
        )
    n_bytes = sum(4 * weight.numel() for weight in encoder.backbone.parameters())  # in float32
    if n_bytes > _LARGEST_FILE:
        raise CheckpointError(
            f"--backend: the weights of {name} do not go into one file of 2 GB", hint=hint
        )

    # The ONNX graph comes first, because all others are made from it.
    target = folder / GRAPH_FILES["onnx"]
    target.parent.mkdir()
    try:
        with _quiet():
            _trace(encoder, target)
    except torch.onnx.OnnxExporterError as error:
        raise CheckpointError(
            f"--backend: the architecture {encoder.config.model_type} of {name} has no graph: "
            "PyTorch's exporter cannot follow its computation",
            hint=hint,
        ) from error

    # The other graphs.
    with foreign_format(target, "a graph that its backend takes", error=CheckpointError), _quiet():
        for backend in backends:
            if backend is Backend.OPENVINO:
                _write_openvino(encoder, target, folder, quantize=quantize)
            elif quantize:
                from onnxruntime.quantization import QuantType, quantize_dynamic

                int8_file = folder / GRAPH_FILES["onnx_int8"]
                quantize_dynamic(target, int8_file, per_channel=True, weight_type=QuantType.QInt8)

    # Without the backend ``onnx``, the ONNX graph was only needed to make the others.
    if Backend.ONNX not in backends:
        target.unlink()
        target.parent.rmdir()


def _write_openvino(encoder: SentenceEncoder, onnx: Path, folder: Path, *, quantize: bool) -> None:
    import openvino

    graph = folder / GRAPH_FILES["openvino"]
    graph.parent.mkdir()
    model = openvino.convert_model(str(onnx))
    openvino.save_model(model, str(graph), compress_to_fp16=False)
    if quantize:
        import nncf

        int8 = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
        openvino.save_model(
            int8, str(folder / GRAPH_FILES["openvino_int8"]), compress_to_fp16=False
        )


def _trace(encoder: SentenceEncoder, target: Path) -> None:
    """Write the transformer as an ONNX graph for batches and texts of any size."""
    accepted = inspect.signature(encoder.backbone.forward).parameters
    in_both = accepted.keys() & encoder.tokenizer.model_input_names
    names = tuple(name for name in _INPUTS if name in in_both)
    ids, mask = pad(_EXAMPLE, encoder.tokens.pad_id)
    example = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    # All inputs have one shape. Their shapes are a tuple in a tuple, because ``forward`` has one
    # parameter, ``*inputs``.
    shape = {0: torch.export.Dim("batch_size"), 1: torch.export.Dim("sequence_length")}
    torch.onnx.export(
        _LastStates(encoder.backbone, names).eval(),
        tuple(example[name] for name in names),
        str(target),
        input_names=list(names),
        output_names=[_OUTPUT],
        dynamic_shapes=((shape,) * len(names),),
        opset_version=_OPSET,
        external_data=False,
        dynamo=True,
        verbose=False,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter and the quantisers, and switch gradients off.

    The exporter prints the whole graph where it fails, and the quantisers print their own progress.
    """
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
            torch.no_grad(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def open_graphs(folder: Path) -> dict[str, GraphPass]:
    """Return the graphs of a model folder, as functions from ids and mask to states.

    Graphs whose package is not installed are left out.
    """
    opened: dict[str, GraphPass] = {}
    for name, file in GRAPH_FILES.items():
        if (folder / file).is_file():
            with contextlib.suppress(MissingExtraError):
                backend = Backend(name.removesuffix("_int8"))
                require_backend(backend)
                opened[name] = _open(folder / file, backend)
    return opened


def _open(path: Path, backend: Backend) -> GraphPass:
    """Return a graph as a function from ids and mask to states."""
    run: Callable[[dict[str, Integers]], Any]
    if backend is Backend.ONNX:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [graph_input.name for graph_input in session.get_inputs()]
        run = partial(session.run, [_OUTPUT])
    else:
        import openvino

        graph = openvino.compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        names = [graph_input.get_any_name() for graph_input in graph.inputs]
        run = graph

    def states(ids: Tensor, mask: Tensor) -> Tensor:
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
        arrays = {name: inputs[name].numpy().astype(np.int64) for name in names}
        last_states = run(arrays)[0]  # the only output
        return torch.from_numpy(np.array(last_states))

    return states
