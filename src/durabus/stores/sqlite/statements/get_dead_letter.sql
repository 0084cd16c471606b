-- An event that ended FAILED or COMPLETED_WITH_ERRORS. Relies on the primary key of dead_letters.
SELECT {dead_letter} FROM dead_letters WHERE id = ?
