"""`penstock pipeline`: archive topics into a lake on Spark, and query, replay and report on it."""
