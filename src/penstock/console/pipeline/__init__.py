"""The lake of a cluster as the console reads it, and pipeline work as jobs in processes of their own."""
