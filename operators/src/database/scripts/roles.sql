-- The roles, with the passwords of the Secrets, and the database. These statements are in no log, no error and no statistics.
\set VERBOSITY terse
SET log_statement = 'none';
SET log_min_error_statement = 'panic';
SET log_min_duration_statement = -1;
SET log_min_duration_sample = -1;
SET log_transaction_sample_rate = 0;
SET pg_stat_statements.track = 'none';
SET track_activities = off;
-- Replicas connect only after this, so it must not wait for them, nor for a setting that makes everything read-only.
SET synchronous_commit = local;
SET default_transaction_read_only = off;
-- That a role has a grant already.
SET client_min_messages = warning;
\set app `cat /secrets/app/username`

SELECT format('CREATE ROLE %I LOGIN', :'app') WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'app') \gexec
-- Each byte of the password counts: psql would take away a newline at the end.
SELECT format('ALTER ROLE %I PASSWORD %L', :'app', pg_read_file('/secrets/app/password')) \gexec
SELECT 'CREATE ROLE replication LOGIN REPLICATION' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'replication') \gexec
SELECT format('ALTER ROLE replication PASSWORD %L', rtrim(pg_read_file('/secrets/replication/password'), E'\n')) \gexec
SELECT format('CREATE DATABASE app OWNER %I', :'app') WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'app') \gexec

-- Backups use the role of the replicas, which can copy all data anyway: tables and large objects of the superuser, and tables with
-- row-level security, would end a backup by the role of the application.
ALTER ROLE replication BYPASSRLS;
ALTER ROLE replication SET lo_compat_privileges = on;
GRANT CONNECT ON DATABASE app TO replication;
GRANT pg_read_all_data TO replication;
