"""The programs that create the pictures of ``docs/``: ``python -m website.pictures [NAME...]`` runs them."""
