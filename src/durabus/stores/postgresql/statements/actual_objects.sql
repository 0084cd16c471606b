-- Every object of a schema with what makes it what it is, except the days of the log and the books of migrations.
SELECT kind, name, definition FROM (
    SELECT
        CASE relation.relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' ELSE 'table' END AS kind,
        relation.relname::text AS name,
        CASE relation.relkind WHEN 'S' THEN '' ELSE (
            SELECT string_agg(format(
                '%s %s%s', attribute.attname, format_type(attribute.atttypid, attribute.atttypmod),
                CASE WHEN attribute.attnotnull THEN ' NOT NULL' ELSE '' END
            ), ', ' ORDER BY attribute.attnum)
            FROM pg_attribute AS attribute
            WHERE attribute.attrelid = relation.oid AND attribute.attnum > 0 AND NOT attribute.attisdropped
        ) END AS definition
    FROM pg_class AS relation
    WHERE relation.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
        AND relation.relkind IN ('r', 'p', 'v', 'S') AND NOT relation.relispartition
        AND relation.relname NOT LIKE 'durabus\_%'
    UNION ALL
    SELECT 'index', relation.relname::text, replace(pg_get_indexdef(relation.oid), format('%I.', $1), '')
    FROM pg_class AS relation JOIN pg_index ON pg_index.indexrelid = relation.oid
    JOIN pg_class AS owner ON owner.oid = pg_index.indrelid
    WHERE relation.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
        AND NOT owner.relispartition AND owner.relname NOT LIKE 'durabus\_%'
    UNION ALL
    SELECT 'function', function.proname::text,
        format('%s %s', pg_get_function_identity_arguments(function.oid), function.prosrc)
    FROM pg_proc AS function
    WHERE function.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
) AS object
