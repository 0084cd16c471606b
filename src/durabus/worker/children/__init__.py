"""Child events: a parent completes after them, waits for them, or asks another node to run them."""
