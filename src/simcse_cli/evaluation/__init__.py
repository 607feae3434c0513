"""Evaluation protocols for any function from sentences to vectors."""
