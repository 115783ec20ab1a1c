"""The share coordinator: what is stored of share partitions, in ``__share_group_state`` (KIP-932)."""
