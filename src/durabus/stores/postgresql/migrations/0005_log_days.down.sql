DROP FUNCTION drop_log_day, make_log_days;
