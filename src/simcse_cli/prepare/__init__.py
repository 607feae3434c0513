"""Build training files from corpora, and check data."""
