-- Makes buses and the handlers of nodes known, one after the other: see the function.
SELECT {schema}.register_handlers($1, bus, node, handler_ids, patterns, kept_for)
FROM json_to_recordset($2::json)
    AS given (bus text, node text, handler_ids text[], patterns text[], kept_for double precision)
