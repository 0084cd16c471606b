"""The demo: a shop that loses a worker but no event."""
