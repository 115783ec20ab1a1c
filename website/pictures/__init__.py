"""The programs that make the pictures of ``docs/``: ``python -m website.pictures [NAME...]`` writes them."""
