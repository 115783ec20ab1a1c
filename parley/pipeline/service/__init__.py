"""What the pipeline's servers with a REST API have in common: addresses and TLS, logins, bodies and errors."""
