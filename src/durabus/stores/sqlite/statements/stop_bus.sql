-- Marks a bus as stopped.
UPDATE event_buses SET stopped_at = :now WHERE bus = :bus
