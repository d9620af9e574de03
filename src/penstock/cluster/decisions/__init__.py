"""Pure decisions about the next metadata image: topics, settings, leaders, replicas. Nothing here writes."""
