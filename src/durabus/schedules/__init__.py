"""Schedules: events that a bus publishes at set times. Any node that serves the bus publishes them, each once."""
