"""The management console: a REST API and pages for the operators of one or more clusters, which it asks as a client."""
