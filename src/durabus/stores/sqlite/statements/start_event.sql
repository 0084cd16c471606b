-- Work began.
UPDATE events SET started_at = :now, updated_at = :now WHERE id = :id
