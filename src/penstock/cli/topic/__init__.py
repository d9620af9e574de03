"""`penstock topic`: create, list, describe, alter and delete topics."""
