-- Where the schema differs from what the migrations noted. An added object has nothing expected.
SELECT coalesce(expected.kind, actual.kind), coalesce(expected.name, actual.name), expected.definition, actual.definition
FROM {schema}.durabus_objects AS expected FULL JOIN (
    {actual_objects}
) AS actual ON (actual.kind, actual.name) = (expected.kind, expected.name)
WHERE actual.definition IS DISTINCT FROM expected.definition
ORDER BY expected.kind = 'index', 1, 2
