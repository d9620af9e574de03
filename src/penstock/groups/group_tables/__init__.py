"""Groups and their members, as tables that people and their tools can read."""
