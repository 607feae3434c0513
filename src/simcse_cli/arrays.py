"""The kinds of NumPy arrays, as annotations name them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
AnyFloats = NDArray[np.floating[Any]]
Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
