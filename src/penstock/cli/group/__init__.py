"""`penstock group`: list, describe, reset, pause and delete consumer groups."""
