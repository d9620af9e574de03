"""Between topics and rows: which offsets, read into columns; rows sent as records."""
