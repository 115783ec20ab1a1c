"""The wire side of the broker: listeners, connections, and the way from a frame to a handler and back."""
