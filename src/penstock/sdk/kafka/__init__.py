"""The backend of a cluster: everything of the SDK that uses confluent-kafka."""
