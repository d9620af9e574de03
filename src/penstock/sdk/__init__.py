"""The SDK for applications, on confluent-kafka: sending, receiving, requests and replies, transactions, hooks."""
