"""Gradients of a large batch in the memory of a small one.

Source: GradCache, Gao et al. 2021, arXiv 2101.06983.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from simcse_cli.machine.rng import RngState
from simcse_cli.objectives.base import Representations

Chunk = TypeVar("Chunk")


def cached_backward(
    chunks: Sequence[Chunk],
    encode: Callable[[Chunk], Representations],
    loss: Callable[[Representations], Tensor],
    *,
    device: torch.device,
    backward: Callable[[Tensor], object] = Tensor.backward,
) -> Tensor:
    """Add the gradient of ``loss`` over all chunks to the parameters; return the loss, detached.

    There are three passes:

    1. Encode every chunk without a graph, and remember the random state before each chunk.
    2. Compute the loss of all representations, and the gradient of the loss with respect to the
       representations and to the loss's own parameters.
    3. Encode every chunk again from its random state, hence with the same dropout masks, and
       backpropagate the gradient of its representations.

    The result is the gradient of a pass that encodes the chunks one by one and keeps all graphs.
    The memory is that of the largest chunk plus the representations.

    Args:
        chunks: the parts of a batch, which are encoded one at a time.
        encode: returns the representations of a chunk, with rows in the order of the chunk.
        loss: returns the loss of the representations of all chunks, joined.
        device: where the encoder draws its dropout masks.
        backward: backpropagates the loss in the second pass; a gradient scaler needs its own.
    """
    # First pass: no graph, so only one chunk is in memory.
    states = []
    parts = []
    with torch.no_grad():
        for chunk in chunks:
            states.append(RngState.of(device))
            parts.append(encode(chunk))

    # Second pass: the representations are small, so all of them fit.
    leaves = tuple(
        torch.cat(column).detach().requires_grad_() for column in zip(*parts, strict=True)
    )
    total_loss = loss(leaves)
    backward(total_loss)

    # Cut the gradient of each leaf into the rows of the chunks.
    gradients = []
    for leaf, column in zip(leaves, zip(*parts, strict=True), strict=True):
        # The loss may not depend on this leaf.
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        gradients.append(torch.split(gradient, [len(rows) for rows in column]))

    # Third pass: repeat the dropout masks of the first pass. Afterwards, random draws go on from
    # the state before this pass.
    final_state = RngState.of(device)
    for chunk, state, *gradients_of_chunk in zip(chunks, states, *gradients, strict=True):
        state.restore(device)
        trained = []
        their_gradients = []
        for rows, gradient in zip(encode(chunk), gradients_of_chunk, strict=True):
            if rows.requires_grad:  # unlike the losses of a chunk without masked rows
                trained.append(rows)
                their_gradients.append(gradient)
        torch.autograd.backward(trained, their_gradients)
    final_state.restore(device)
    return total_loss.detach()
