-- As add_event_tags.sql, for given ids.
INSERT INTO event_tags (bus, tag, priority, id)
SELECT event.bus, tag.value, event.priority, event.id
FROM json_each(:ids) AS wanted CROSS JOIN events AS event CROSS JOIN json_each(iif(json_valid(event.tags), event.tags, '[]')) AS tag
WHERE event.id = wanted.value AND event.ready = 1 AND event.tags IS NOT NULL
ON CONFLICT DO NOTHING
