"""Files and folders around the segments: identity, state files, stray folders, the first files, open files."""
