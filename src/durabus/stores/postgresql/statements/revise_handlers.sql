-- The bus has another list of handlers now: a number that no list had before.
UPDATE {schema}.event_buses SET revision = nextval('{schema}.handler_revisions') WHERE bus = $1
