"""The connectors that come with Parley, each in a module of its own; none is imported before it is named."""
