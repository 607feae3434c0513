"""What the evaluation needs of an encoder: a function from sentences to vectors."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
"""Maps N sentences to ``(N, D)`` vectors; row i belongs to sentence i."""
