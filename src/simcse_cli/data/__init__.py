"""Readers and writers of text: tables, training files, evaluation sets and the generated corpus."""
