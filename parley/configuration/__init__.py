"""What configuration files contain and name: key stores, TLS settings. The lowest room: it imports no other."""
