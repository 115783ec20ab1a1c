"""The common parts of the pipeline's servers with a REST API: addresses and TLS, logins, bodies and errors."""
