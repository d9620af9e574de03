"""Topics in a folder, for the processes of one machine: segments of record batches, and a SQLite file for the rest."""
