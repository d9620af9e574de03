"""The layouts of the control-plane messages, one file per API, under Kafka's field names in snake_case."""
