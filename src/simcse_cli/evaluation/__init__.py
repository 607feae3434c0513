"""Protocols that judge an encoder given a function from sentences to vectors."""
