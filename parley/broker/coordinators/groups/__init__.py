"""The group coordinator: the members of consumer groups, their assignments, and the offsets they have committed."""
