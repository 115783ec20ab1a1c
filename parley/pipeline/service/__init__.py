"""What servers of the pipeline with a REST API share: addresses and TLS, logins, bodies and errors."""
