-- Adds up what many transactions noted: see the function.
SELECT {schema}.add_up_counts()
