"""Many writers of one partition in a database, some of them without a broker, while brokers and the database die."""
