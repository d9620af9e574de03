"""What the console itself keeps in a database: users, sessions, tokens, audit log, rules, samples, jobs."""
