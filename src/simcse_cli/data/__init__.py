"""Readers, corpora, augmentation and everything else that is text."""
