"""`penstock send` and `penstock tail`: messages into a topic, and records out of it."""
