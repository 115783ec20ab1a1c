"""The connectors that come with Parley. A connector's module is imported only when a configuration names it."""
