"""Removing records: compaction, trimming the start of a log, truncating its end."""
