"""Elections of partition leaders: preferred, unclean, and recovery without eligible leader replicas (ELR, KIP-966)."""
