"""Encoding of sentence streams into files of vectors."""
