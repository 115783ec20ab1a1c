"""The cluster's metadata as a broker sees it: an immutable image, its changes, and the holder of the current image."""
