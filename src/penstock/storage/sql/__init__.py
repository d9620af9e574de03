"""The SQL engine: logs in the tables of a database that every broker reaches."""
