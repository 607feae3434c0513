"""Text augmentation: the operators, their models, and files of augmented pairs."""
