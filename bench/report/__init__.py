"""What a run leaves behind: terminal table, JSON, markdown and picture."""
