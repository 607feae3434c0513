"""Analyses of embedding spaces, groups of texts, word overlap, searches and training runs."""
