"""What can be set: a broker's settings by section, a topic's under Kafka's names, and one loader."""
