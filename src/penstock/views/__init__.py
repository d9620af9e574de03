"""Views: topics that show the records of another topic that have certain tags."""
