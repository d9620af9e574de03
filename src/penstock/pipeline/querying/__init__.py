"""All that there ever was of topics, archived and live, as frames of Spark and as tables of SQL."""
