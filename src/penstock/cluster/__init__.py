"""What the cluster knows about itself, where that is kept, and who may change it how."""
