"""`penstock serve`: one broker, or several under a supervisor."""
