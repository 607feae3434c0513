"""The machine: devices, processes, threads and memory."""
