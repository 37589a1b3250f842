"""A captioner on disk: its folder, card and register of pictures; checks, joining, the hub, and the built-in one."""
