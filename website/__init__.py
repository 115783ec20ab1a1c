"""The documentation's site: ``python -m website``. ``website.pictures`` draws the pictures of ``docs/``."""
