-- Extends leases of claims that were checked in this transaction. Relies on the primary key of events.
UPDATE events SET lease_expires_at = :expires_at WHERE id IN (SELECT value FROM json_each(:ids))
