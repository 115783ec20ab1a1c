"""The group coordinator: who belongs to a consumer group, what each member was assigned, how far the group has read."""
