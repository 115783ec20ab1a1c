"""The network layer of a broker: listeners, connections, and the dispatch of requests to handlers."""
