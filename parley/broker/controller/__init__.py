"""The controller: the one writer of the cluster's metadata, and the pure decisions it carries out."""
