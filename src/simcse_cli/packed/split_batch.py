"""A training pass in two shares of the sentences, each on half of the cores and with its own graph.

Two teams of half the threads synchronise less often than one team of all. The sentences are split
on a single core, too, so dropout masks and sums are the same on any number of cores.
"""

from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Lock
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from simcse_cli.machine.buffers import BufferPool
from simcse_cli.machine.threads import map_on_cores
from simcse_cli.packed.kernels import QueueWeightGradient
from simcse_cli.packed.layers import map_tensors
from simcse_cli.packed.products import multiply

ShareRun = Callable[[int, Tensor, Any, QueueWeightGradient], Sequence[Tensor]]
"""A function that computes one share.

It takes the share's number and rows, the parameters, and a function that queues gradients.
"""


def run_shares(
    run: ShareRun, inputs: Tensor, sizes: Sequence[int], parameters: Any, pool: BufferPool
) -> tuple[Tensor, ...]:
    """Return the outputs of ``run``, each with the rows of all shares one after the other.

    ``inputs`` are the rows of all shares, followed by rows that belong to no share. ``sizes`` are
    the numbers of rows of the shares. ``parameters`` are tensors in nested tuples and lists.
    Gradients flow to inputs and parameters. ``run`` is called on several threads at once and must
    use no other tensor that needs a gradient. ``pool`` lends the memory of results.
    """
    flat: list[Tensor] = []
    map_tensors(flat.append, parameters)  # collects the tensors
    # This is asked here, because gradients are always off inside an autograd function.
    needs_graph = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (inputs, *flat)
    )
    outputs: tuple[Tensor, ...] = _Shares.apply(
        run, sizes, pool, needs_graph, parameters, inputs, *flat
    )  # type: ignore[no-untyped-call]
    return outputs


class _Shares(torch.autograd.Function):
    """The graphs of all shares as one node of the outer graph."""

    @staticmethod
    def forward(
        ctx: Any,
        run: ShareRun,
        sizes: Sequence[int],
        pool: BufferPool,
        needs_graph: bool,
        parameters: Any,
        inputs: Tensor,
        *flat: Tensor,
    ) -> tuple[Tensor, ...]:
        def leaf(tensor: Tensor) -> Tensor:
            """Return a parameter with the tensor's values, where the graphs of the shares end."""
            return tensor.detach().requires_grad_(needs_graph and tensor.requires_grad)

        # The same tree as ``parameters``, with a leaf in place of each tensor, in the same order.
        leaves = list(map(leaf, flat))
        remaining = iter(leaves)
        tree = map_tensors(lambda _: next(remaining), parameters)
        parts = torch.split(inputs[: sum(sizes)], list(sizes))
        starts = [part.detach().requires_grad_(needs_graph) for part in parts]
        products = _WeightProducts(len(sizes), pool)

        def run_share(share: int) -> Sequence[Tensor]:
            with torch.set_grad_enabled(needs_graph):
                return run(share, starts[share], tree, partial(products.put, share))

        outputs = list(map_on_cores(run_share, range(len(sizes))))
        if needs_graph:
            ctx.outputs = outputs
            ctx.starts = starts
            ctx.leaves = leaves
            ctx.products = products
            ctx.pool = pool
            ctx.n_rows_of_no_share = len(inputs) - sum(sizes)
            ctx.set_materialize_grads(False)
        joined = []
        # ``outputs`` lists the outputs by share; transposed, it lists the shares by output.
        for shares in zip(*outputs, strict=True):
            joined.append(pool.concatenated([share.detach() for share in shares]))
        return tuple(joined)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments of ``forward``.

        ``gradients`` are those of its outputs.
        """
        products = ctx.products
        trained = [leaf for leaf in ctx.leaves if leaf.requires_grad]

        # For each share, its outputs that have a gradient, each with its part of the gradient. The
        # names of gradients begin with ``d_``.
        pairs_by_share: list[list[tuple[Tensor, Tensor]]] = [[] for _ in ctx.starts]
        shares_by_output = zip(*ctx.outputs, strict=True)
        for d_output, shares in zip(gradients, shares_by_output, strict=True):
            if d_output is not None:
                d_shares = torch.split(d_output, list(map(len, shares)))
                for pairs, share, d_share in zip(pairs_by_share, shares, d_shares, strict=True):
                    pairs.append((share, d_share))

        def differentiate_share(share: int) -> tuple[Tensor | None, ...]:
            """Return the gradients of a share's rows and of the trained parameters."""
            try:
                outputs, d_outputs = zip(*pairs_by_share[share], strict=True)
                wanted = [ctx.starts[share], *trained]
                return torch.autograd.grad(outputs, wanted, d_outputs, allow_unused=True)
            finally:  # also after an error, since the jobs of ``multiply`` wait for this call
                products.end_share()

        # Shares, and the products that give gradients of weights, are jobs for any free core.
        n_shares = len(ctx.starts)
        jobs: list[Callable[[], Any]] = [partial(differentiate_share, i) for i in range(n_shares)]
        jobs += [products.multiply] * n_shares  # run by a core whose share is done
        results = list(map_on_cores(lambda job: job(), jobs, at_once=n_shares))
        # Only the shares return gradients. Each item of ``d_trained`` has those of one parameter.
        d_starts, *d_trained = zip(*results[:n_shares], strict=True)

        # The gradient of the inputs, share after share; it is zero for rows of no share.
        d_inputs = []
        for start, d_start in zip(ctx.starts, d_starts, strict=True):
            d_inputs.append(torch.zeros_like(start) if d_start is None else d_start)
        width = d_inputs[0].shape[1]
        d_inputs.append(d_inputs[0].new_zeros(ctx.n_rows_of_no_share, width))

        # The gradients of the parameters, by the ``id`` of the leaf. Those that the shares queued
        # as ``products`` are sums over the shares already; the others are added up here.
        summed: dict[int, Tensor | None] = dict(products.gradients)
        for leaf, d_by_share in zip(trained, d_trained, strict=True):
            if id(leaf) not in summed:
                summed[id(leaf)] = _sum(d_by_share, ctx.pool)
        d_flat = [summed.get(id(leaf)) for leaf in ctx.leaves]
        # The first five arguments of ``forward`` have no gradient.
        return None, None, None, None, None, ctx.pool.concatenated(d_inputs), *d_flat


class _WeightProducts:
    """Gradients of weights, each the sum of one product per share, computed by any free core.

    Shares ``put`` the factors of the products, and cores that are free call ``multiply``.

    Attributes:
        gradients: the finished sums, by the ``id`` of the weight.
    """

    def __init__(self, n_shares: int, pool: BufferPool) -> None:
        self._n_shares = n_shares
        self._n_running = n_shares
        self._pool = pool
        # ``d_out`` and ``x``, by the ``id`` of the weight, then by share.
        self._factors: dict[int, dict[int, tuple[Tensor, Tensor]]] = {}
        # The ``id`` of each weight for which all shares have put factors; None ends a ``multiply``.
        self._complete: SimpleQueue[int | None] = SimpleQueue()
        self._lock = Lock()
        self.gradients: dict[int, Tensor] = {}

    def put(self, share: int, weight: Tensor, d_out: Tensor, x: Tensor) -> None:
        """Queue the product ``d_out^T x``, the part of a weight's gradient that one share gives."""
        with self._lock:
            by_share = self._factors.setdefault(id(weight), {})
            by_share[share] = (d_out, x)
            if len(by_share) == self._n_shares:
                self._complete.put(id(weight))

    def end_share(self) -> None:
        """Record that a share has queued all its products.

        When the last share has done so, the calls of ``multiply`` end after the queued products.
        """
        with self._lock:
            self._n_running -= 1
        # The number is below 0 in a second backward pass. Autograd refuses this pass, but its calls
        # of ``multiply`` must end, too.
        if self._n_running <= 0:
            for _ in range(self._n_shares):
                self._complete.put(None)

    @torch.no_grad()
    def multiply(self) -> None:
        """Compute queued gradients until all shares have ended.

        The products are always added in the order of the shares, so the sums are the same in every
        run.
        """
        while (weight_id := self._complete.get()) is not None:
            by_share = self._factors.pop(weight_id)
            products = []
            for share in range(self._n_shares):
                d_out, x = by_share[share]
                out = self._pool.tensor((d_out.shape[1], x.shape[1]), x.dtype)
                products.append(multiply(d_out.t(), x, out))
            self.gradients[weight_id] = cast(Tensor, _sum(products, self._pool))


def _sum(gradients: Sequence[Tensor | None], pool: BufferPool) -> Tensor | None:
    """Return the sum of the gradients that are not None, or None if all are."""
    summands = [gradient for gradient in gradients if gradient is not None]
    if len(summands) < 2:
        return summands[0] if summands else None
    first, second, *others = summands
    total = torch.add(first, second, out=pool.tensor(tuple(first.shape), first.dtype))
    for gradient in others:
        total += gradient
    return total
