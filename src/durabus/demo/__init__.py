"""The demo: a shop that loses a worker and no event."""
