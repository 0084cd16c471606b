DROP FUNCTION trim_completed, register_handlers;
