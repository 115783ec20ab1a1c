"""The cluster's metadata as a broker sees it: an immutable image, the changes that lead to the next one, its holder."""
