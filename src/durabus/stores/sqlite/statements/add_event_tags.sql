-- Makes ready events of an id range claimable by their tags. Relies on the primary key of event_tags.
INSERT INTO event_tags (bus, tag, priority, id)
SELECT event.bus, tag.value, event.priority, event.id
FROM events AS event CROSS JOIN json_each(iif(json_valid(event.tags), event.tags, '[]')) AS tag
WHERE event.id BETWEEN :first AND :last AND event.ready = 1 AND event.tags IS NOT NULL
ON CONFLICT DO NOTHING
