"""ShareFetch and ShareAcknowledge: members of share groups acquire records and acknowledge them (KIP-932)."""
