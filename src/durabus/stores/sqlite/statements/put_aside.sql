-- Ready events that are not the first of their ordering key: the triggers on events bring them back.
UPDATE events SET ready = 2 WHERE id IN (SELECT value FROM json_each(:ids))
