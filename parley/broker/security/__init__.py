"""Who clients are and what they may do: logins, TLS, principals, ACLs, and the audit log."""
