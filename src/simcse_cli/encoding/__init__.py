"""Streams of sentences to files of vectors."""
