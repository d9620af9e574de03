"""Everything that the console can do: each operation is authorised and audited, for the API and the pages alike."""
