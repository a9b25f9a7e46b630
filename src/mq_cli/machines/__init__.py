"""Processes on this machine: a broker, a trial cluster, pages, locks; and what is wrong with them and their disks."""
