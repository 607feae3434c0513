"""Building training files from corpora."""
