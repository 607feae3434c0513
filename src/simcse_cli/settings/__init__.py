"""Settings: how they are declared, those that commands share, and the recipes that set them."""
