"""Topics into the lake, exactly once."""
