"""The elected controller: what one broker of the cluster does for all of them."""
