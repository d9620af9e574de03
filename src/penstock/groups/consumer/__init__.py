"""Groups of the new protocol (KIP-848): members say what they want, the broker makes the plan."""
