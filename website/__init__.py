"""The site of the documentation: ``python -m website``. ``website.pictures`` draws the pictures of ``docs/``."""
