"""store_move."""
