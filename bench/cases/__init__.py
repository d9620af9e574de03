"""What is measured: one file a question, each returning plain figures."""
