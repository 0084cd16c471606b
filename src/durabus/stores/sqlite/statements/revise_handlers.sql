-- The bus has another list of handlers now.
UPDATE event_buses SET revision = (SELECT value FROM counters WHERE name = 'revision') WHERE bus = ?
