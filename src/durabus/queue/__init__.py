"""The queue without a bus: EventQueue, EventManager, dead letters, projections and locks."""
