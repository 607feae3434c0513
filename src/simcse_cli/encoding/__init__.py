"""Encode streams of sentences into files of vectors."""
