-- Which installation of durabus this is.
SELECT id::text FROM {schema}.installation
