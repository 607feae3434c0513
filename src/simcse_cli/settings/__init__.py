"""What a setting is, the settings that commands share, and the recipes that set them."""
