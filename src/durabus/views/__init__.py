"""The one read service: typed answers about events, workers and activity, for CLI, dashboard, demo and metrics."""
