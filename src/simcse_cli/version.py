"""The version of the toolkit, in a module that any other may import."""

__version__ = "1.0.0"
