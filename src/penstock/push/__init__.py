"""Push: delivers the messages of topics to an HTTP endpoint; an application of the SDK."""
