"""What a pack holds beside map and datastore, and what can be done to one: its card, its pictures, checks, joining."""
