"""The Spark job of ``make pipeline``."""
