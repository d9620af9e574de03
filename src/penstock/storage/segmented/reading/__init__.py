"""Reading segments: batches by offset and time, the tag index, and a dump of the files for people."""
