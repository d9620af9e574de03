"""The cluster's metadata, where it is kept, who may change it and how; membership, and the elected controller."""
