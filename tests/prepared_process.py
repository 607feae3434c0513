"""What every process that loads a model computes once; forks of a process that imported this have it."""

import gc
import os

import typer._adapters  # noqa: F401 - on first use of an option
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

del os.environ["PYTHONPATH"]  # it was for this import alone
get_checkpoint_conversion_mapping("bert")
gc.freeze()  # else each fork goes through all objects of the modules, which takes 0.3 s
