"""A newer deployment takes over from an older one: it stands by, catches up, and is promoted, without a lost write."""
