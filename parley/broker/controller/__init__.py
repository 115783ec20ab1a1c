"""The controller: the only writer of the cluster's metadata, and the pure decisions that it carries out."""
