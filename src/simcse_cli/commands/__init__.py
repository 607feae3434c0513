"""One module per command of the console."""
