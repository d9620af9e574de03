"""Bringing logs back after a stop or a crash: the checkpoint, the scan of segments, repair of damage."""
