DROP FUNCTION drop_log_partition, make_log_partitions;
