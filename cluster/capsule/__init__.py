"""A job's capsule: one file with what the job ran with, from which it runs again; and a report about a problem."""
