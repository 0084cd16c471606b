-- Reverts 0001 and deletes everything that is stored.
DROP VIEW subscriptions;
DROP TABLE counters;
DROP TABLE positions;
DROP TABLE event_handlers;
DROP TABLE event_buses;
DROP TABLE locks;
DROP TABLE event_results;
DROP TABLE idempotency_keys;
DROP TABLE event_counts;
DROP TABLE event_log;
DROP TABLE dead_letters;
DROP TABLE event_tags;
DROP TABLE events;
