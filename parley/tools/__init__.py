"""The command line and the public test kit."""
