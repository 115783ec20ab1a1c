"""The broker's keys, by theme."""
