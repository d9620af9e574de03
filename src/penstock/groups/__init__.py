"""Consumer groups: membership, assignments and committed offsets."""
