"""Measures of an embedding space: geometry, spectrum, densities and retrieval.

Another analysis is the path of a training run.
"""
