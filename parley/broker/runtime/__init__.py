"""What the parts of a broker run on: the clock, tasks, threads, purgatories, and tables of states."""
