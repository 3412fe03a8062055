"""The machine: what it is, how its time and memory are read, how chance is fixed."""
