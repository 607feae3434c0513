"""Contrastive sentence embeddings from the command line: prepare, augment, train, eval, encode, analyze, compare."""

__version__ = "0.1.0"
