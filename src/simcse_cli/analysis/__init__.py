"""Measures of an embedding space: geometry, spectrum, densities, retrieval and the path of a training run."""
