"""Changing text: the operators, the models behind them, and files of augmented pairs."""
