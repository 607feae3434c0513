"""Settings: their declaration, the settings that commands share, and recipes."""
